"""The kernels of benchmarks/kernels.py and benchmarks/gpu.py: what each computes, and on what tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

Tensors = tuple[Any, ...]


@dataclass(frozen=True)
class Maker:
    """Makes tensors of one dtype on one device. `rows` by `columns` is the largest one."""

    rows: int
    columns: int
    dtype: torch.dtype
    device: torch.device

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, device=self.device, dtype=self.dtype)

    def row(self) -> torch.Tensor:
        return self.normal(self.columns)

    def matrix(self) -> torch.Tensor:
        return self.normal(self.rows, self.columns)

    def images(self) -> torch.Tensor:
        """As many elements, as images of 64 channels."""
        side = math.isqrt(self.columns)
        return self.normal(max(self.rows // 64, 1), 64, side, side)

    def positions(self, below: int) -> torch.Tensor:
        """An integer for each row."""
        return torch.randint(below, (self.rows,), device=self.device)


@dataclass(frozen=True)
class Kernel:
    """What is computed, and a function that makes its arguments."""

    compute: Callable[..., Any]
    arguments: Callable[[Maker], Tensors]


def copied(arguments: Tensors) -> Tensors:
    """Copies of the tensors, because some kernels write into their arguments."""
    return torch.utils._pytree.tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, arguments)


def bytes_of(*tensors: Any) -> int:
    """Bytes of the elements of distinct tensors."""
    found = {id(t): t for t in torch.utils._pytree.tree_leaves(tensors) if isinstance(t, torch.Tensor)}
    return sum(t.numel() * t.element_size() for t in found.values())


def bytes_moved(arguments: Tensors, results: Any) -> int:
    """Bytes that must be read and written at least. Without results, all arguments but the second are written in place."""
    return bytes_of(arguments) + bytes_of((arguments[0], *arguments[2:]) if results is None else results)


# ------------------------------------------------------------------------------------------------ arguments


def _batch_norm_arguments(m: Maker) -> Tensors:
    scale, shift, mean = [m.normal(64) for _ in range(3)]
    return m.images(), scale, shift, mean, torch.rand(64, device=m.device, dtype=m.dtype) + 0.5


def _matrices_to_transpose(m: Maker) -> Tensors:
    side = min(m.rows, m.columns)
    count = m.rows // side
    return m.normal(count, side, m.columns), m.normal(count, m.columns, side)


def _heads(m: Maker) -> Tensors:
    """Sixteen heads of 64 elements at up to 512 positions, and the angles of the positions."""
    length = min(512, m.rows)
    angles = torch.randn(length, 64, device=m.device)
    return m.normal(m.rows // length, 16, length, 64), angles.cos().to(m.dtype), angles.sin().to(m.dtype)


def _parameters(m: Maker) -> Tensors:
    """100 parameters with gradients and two moments, all of them as large as the matrix."""
    shape = (m.rows // 400, m.columns) if m.rows >= 400 else (m.rows * m.columns // 400,)
    return tuple([torch.rand(shape, device=m.device, dtype=m.dtype) for _ in range(100)] for _ in range(4))


# ------------------------------------------------------------------------------------------------ what they compute


def pointwise_chain(x: Any, y: Any) -> Any:
    return torch.sigmoid(x) * y + torch.tanh(x * 0.5) - torch.where(y > 0, x, y * y)


def layer_norm(x: Any, scale: Any, shift: Any) -> Any:
    return F.layer_norm(x, x.shape[-1:], scale, shift)


def rms_norm(x: Any, scale: Any) -> Any:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * scale


def batch_norm(x: Any, scale: Any, shift: Any, mean: Any, variance: Any) -> Any:
    return F.relu(F.batch_norm(x, mean, variance, scale, shift, training=False))


def batch_norm_of_the_batch(x: Any, scale: Any, shift: Any, mean: Any, variance: Any) -> Any:
    return F.relu(F.batch_norm(x, None, None, scale, shift, training=True))


def embedding_norm(index: Any, table: Any, scale: Any, shift: Any) -> Any:
    return F.layer_norm(F.embedding(index, table), table.shape[-1:], scale, shift)


def rotary(x: Any, cosine: Any, sine: Any) -> Any:
    half = x.shape[-1] // 2
    return x * cosine + torch.cat([-x[..., half:], x[..., :half]], -1) * sine


def adamw(parameters: Any, gradients: Any, first: Any, second: Any) -> Any:
    """One step over all tensors, written as a user would; the new state replaces the old."""
    for p, g, m, v in zip(parameters, gradients, first, second, strict=True):
        m.lerp_(g, 0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        p.mul_(0.9999).addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-3)


def slice_writes(x: Any) -> Any:
    y = torch.zeros_like(x)
    y[1:-1, 1:-1] = x[2:, 1:-1] - x[:-2, 1:-1]
    y[0], y[-1] = x[0], x[-1]
    y[:, 0] = y[:, 1]
    y[:, -1] += 2
    return y


def jacobi(x: Any) -> Any:
    y = x.clone()
    y[1:-1, 1:-1] = (x[2:, 1:-1] + x[:-2, 1:-1] + x[1:-1, 2:] + x[1:-1, :-2]) * 0.25
    return y


def mask_writes(x: Any, y: Any) -> Any:
    sign = (x * y).sign()
    sign[sign.gt(0)] = 1.2
    sign[sign.lt(0)] = 0.5
    return sign


def norm_over_channels(x: Any) -> Any:
    centred = x - x.mean(1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(1, keepdim=True) + 1e-6)


def complex_rotary(x: Any, angles: Any) -> Any:
    return torch.view_as_real(torch.view_as_complex(x.float()) * angles)


KERNELS: dict[str, Kernel] = {
    "pointwise chain": Kernel(pointwise_chain, lambda m: (m.matrix(), m.matrix())),
    "softmax": Kernel(lambda x: torch.softmax(x, -1), lambda m: (m.matrix(),)),
    "layer norm": Kernel(layer_norm, lambda m: (m.matrix(), m.row(), m.row())),
    "gelu-bias-residual": Kernel(lambda x, b, r: F.gelu(x + b) + r, lambda m: (m.matrix(), m.row(), m.matrix())),
    "rms norm": Kernel(rms_norm, lambda m: (m.matrix(), m.row())),
    "sum inner": Kernel(lambda x: x.sum(-1), lambda m: (m.matrix(),)),
    "sum outer": Kernel(lambda x: x.sum(0), lambda m: (m.matrix(),)),
    "sum all": Kernel(lambda x: x.sum(), lambda m: (m.matrix(),)),
    "cross entropy": Kernel(F.cross_entropy, lambda m: (m.matrix(), m.positions(m.columns))),
    "transpose-add": Kernel(lambda x, y: x.transpose(1, 2) + y, _matrices_to_transpose),
    "batch norm": Kernel(batch_norm, _batch_norm_arguments),
    "batch norm, training": Kernel(batch_norm_of_the_batch, _batch_norm_arguments),
    "embedding + norm": Kernel(embedding_norm, lambda m: (m.positions(m.rows), m.matrix(), m.row(), m.row())),
    "index_add": Kernel(
        lambda x, i, y: x.index_add(0, i, y), lambda m: (torch.zeros_like(m.matrix()), m.positions(m.rows), m.matrix())
    ),
    "cumsum": Kernel(lambda x: x.cumsum(-1), lambda m: (m.matrix(),)),
    "upsample": Kernel(lambda x: F.interpolate(x, scale_factor=2.0), lambda m: (m.images(),)),
    "max pool": Kernel(lambda x: F.max_pool2d(x, 2), lambda m: (m.images(),)),
    "rotary": Kernel(rotary, _heads),
    "adamw, 100 tensors": Kernel(adamw, _parameters),
    "rotary, complex": Kernel(
        complex_rotary,
        lambda m: (
            m.normal(m.rows // 16, 16, m.columns // 2, 2),
            torch.polar(torch.ones(16, m.columns // 2), torch.randn(16, m.columns // 2)).to(m.device),
        ),
    ),
    "mask writes": Kernel(mask_writes, lambda m: (m.matrix(), m.matrix())),
    "comparison as numbers": Kernel(lambda x, y: (x < y.sigmoid()).to(x.dtype), lambda m: (m.matrix(), m.matrix())),
    "roll": Kernel(lambda x: x.roll(3, -1) + x, lambda m: (m.matrix(),)),
    "reflection padding": Kernel(lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect") * 2, lambda m: (m.images(),)),
    "floor division": Kernel(
        lambda i: i // 7, lambda m: (torch.randint(-512, 512, (m.rows, m.columns), device=m.device),)
    ),
    "embeddings added up": Kernel(
        lambda i, w: F.embedding(i, w).sum(1),
        lambda m: (torch.randint(m.rows, (m.rows, 32), device=m.device), m.matrix()),
    ),
    "slice writes": Kernel(slice_writes, lambda m: (m.matrix(),)),
    "jacobi step": Kernel(jacobi, lambda m: (m.matrix(),)),
    "softplus": Kernel(F.softplus, lambda m: (m.matrix(),)),
    "argmax of what is computed": Kernel(lambda x, y: (x - y.exp()).argmax(-1), lambda m: (m.matrix(), m.matrix())),
    "max with its index, outer": Kernel(lambda x: x.max(0), lambda m: (m.matrix(),)),
    "log softmax, outer": Kernel(lambda x: x.log_softmax(0), lambda m: (m.matrix(),)),
    "norm over channels": Kernel(norm_over_channels, lambda m: (m.images(),)),
    "remainder": Kernel(lambda x: x % 0.7, lambda m: (m.matrix(),)),
}
