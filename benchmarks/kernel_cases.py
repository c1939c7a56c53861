"""The kernels of benchmarks/kernels.py: what each computes, on what tensors, and how many bytes it has to move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

SIZES = ("cache", "memory", "odd")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Rows and columns of the main tensor in float32: 256 KB, 64 MB, and 16 MB in rows that no vector length divides.
SHAPES = {"cache": (64, 1024), "memory": (16384, 1024), "odd": (4099, 1021)}


@dataclass(frozen=True)
class Case:
    """`function(*arguments)` reads and writes `n_bytes` if it touches everything once."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    n_bytes: int


@dataclass(frozen=True)
class Maker:
    """Makes tensors of one dtype on one device. `rows` times `columns` is the size of the main one, the same in bytes for all dtypes."""

    size: str
    dtype: torch.dtype
    device: str

    @property
    def rows(self) -> int:
        return SHAPES[self.size][0] * 4 // self.dtype.itemsize

    @property
    def columns(self) -> int:
        return SHAPES[self.size][1]

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, device=self.device).to(self.dtype)

    def main(self) -> torch.Tensor:
        return self.normal(self.rows, self.columns)

    def image(self, channels: int = 16) -> torch.Tensor:
        """About as many elements as the main tensor, as an image."""
        side = int((self.rows * self.columns / channels) ** 0.5)
        side -= side % 2 if self.size != "odd" else side % 2 - 1
        return self.normal(1, channels, side, side)

    def positions(self, n: int, below: int) -> torch.Tensor:
        return torch.randint(0, below, (n,), device=self.device)


def _bytes(*tensors: torch.Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _case(function: Callable[..., Any], *arguments: torch.Tensor, result: torch.Tensor | None = None) -> Case:
    """Reads all arguments; the result has the size of the first one, if it is not given."""
    return Case(function, arguments, _bytes(*arguments, arguments[0] if result is None else result))


def pointwise_chain(m: Maker) -> Case:
    return _case(lambda x, y: torch.sigmoid(x * 2 + y) * torch.tanh(x) - y.abs(), m.main(), m.main())


def gelu_bias_residual(m: Maker) -> Case:
    return _case(lambda x, b, r: F.gelu(x + b) + r, m.main(), m.normal(m.columns), m.main())


def softmax(m: Maker) -> Case:
    return _case(lambda x: torch.softmax(x, -1), m.main())


def layer_norm(m: Maker) -> Case:
    return _case(
        lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), m.main(), m.normal(m.columns), m.normal(m.columns)
    )


def rms_norm(m: Maker) -> Case:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w

    return _case(f, m.main(), m.normal(m.columns))


def batch_norm(m: Maker) -> Case:
    x = m.image()
    w = m.normal(16)
    return _case(lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, training=True)), x, w, w.clone())


def cross_entropy(m: Maker) -> Case:
    x = m.main()
    target = m.positions(m.rows, m.columns)
    return Case(F.cross_entropy, (x, target), _bytes(x, target))


def sum_inner(m: Maker) -> Case:
    x = m.main()
    return _case(lambda x: x.sum(1), x, result=x[:, 0])


def sum_outer(m: Maker) -> Case:
    x = m.main()
    return _case(lambda x: x.sum(0), x, result=x[0])


def sum_all(m: Maker) -> Case:
    x = m.main()
    return _case(lambda x: (x * x).sum(), x, result=x[0, :1])


def transpose_add(m: Maker) -> Case:
    return _case(lambda x, y: x.t().contiguous() + y, m.main(), m.normal(m.columns, m.rows))


def embedding_norm(m: Maker) -> Case:
    table, w = m.normal(1000, m.columns), m.normal(m.columns)
    index = m.positions(m.rows, 1000)
    result = m.rows * m.columns * m.dtype.itemsize

    def f(t: torch.Tensor, i: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(F.embedding(i, t), t.shape[-1:], w)

    return Case(f, (table, index, w), 2 * result)


def index_add(m: Maker) -> Case:
    x, index = m.main(), m.positions(m.rows, m.rows)
    return Case(lambda x, i, v: x.index_add(0, i, v), (x, index, m.main()), 3 * _bytes(x))


def cumsum(m: Maker) -> Case:
    return _case(lambda x: x.cumsum(-1), m.main())


def upsample(m: Maker) -> Case:
    x = m.image(64)
    return Case(lambda x: F.interpolate(x, scale_factor=2.0), (x,), 5 * _bytes(x))


def max_pool(m: Maker) -> Case:
    x = m.image()
    return Case(lambda x: F.max_pool2d(x, 2), (x,), _bytes(x) * 5 // 4)


def rotary(m: Maker) -> Case:
    heads, width = 16, 64
    x = m.normal(m.rows * m.columns // (heads * width), heads, width)
    angles = m.normal(x.shape[0], 1, width)

    def f(x: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, -1)
        return x * c + torch.cat([-right, left], -1) * s

    return _case(f, x, angles.cos(), angles.sin())


def adamw(m: Maker) -> Case:
    """A step over 100 tensors, in one graph."""
    n = max(m.rows * m.columns // 400, 1)
    groups = [[m.normal(n) for _ in range(100)] for _ in range(2)]
    groups += [[torch.zeros_like(t) for t in groups[0]] for _ in range(2)]

    def f(*tensors: torch.Tensor) -> None:
        p, g, a, s = (list(tensors[k * 100 : k * 100 + 100]) for k in range(4))
        torch._foreach_mul_(p, 1 - 1e-5)
        torch._foreach_lerp_(a, g, 0.1)
        torch._foreach_mul_(s, 0.999)
        torch._foreach_addcmul_(s, g, g, 0.001)
        root = torch._foreach_sqrt(s)
        torch._foreach_add_(root, 1e-8)
        torch._foreach_addcdiv_(p, a, root, -1e-3)

    tensors = [t for group in groups for t in group]
    return Case(f, tuple(tensors), n * 100 * m.dtype.itemsize * 7)


def slice_writes(m: Maker) -> Case:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x)
        y[1:-1, 1:-1] = x[2:, 1:-1] - x[:-2, 1:-1]
        y[0], y[-1] = x[0], x[-1]
        y[:, 0] = y[:, 1]
        y[:, -1] += 2
        return y

    return _case(f, m.main())


CASES: dict[str, Callable[[Maker], Case]] = {
    function.__name__: function
    for function in (
        pointwise_chain, gelu_bias_residual, softmax, layer_norm, rms_norm, batch_norm, cross_entropy, sum_inner, sum_outer,
        sum_all, transpose_add, embedding_norm, index_add, cumsum, upsample, max_pool, rotary, adamw, slice_writes,
    )
}  # fmt: skip
