"""Memory-bound kernels, matrix products and launches, as cases of `benchmarks/gpu.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from gpu_cases import Case, Work, bytes_of

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SIZES = {"64 MB": 64 << 20, "in cache": 4 << 20}  # bytes of the largest input
ROTATED = 4  # 256 MB of inputs: more than the second-level cache of any GPU
COLUMNS = 1024

Tensors = tuple[Any, ...]
Make = Callable[[int, torch.dtype, torch.device], Tensors]  # rows of COLUMNS elements -> arguments


def _matrices(count: int) -> Make:
    return lambda rows, dtype, device: tuple(
        torch.randn(rows, COLUMNS, device=device, dtype=dtype) for _ in range(count)
    )


def _with_row(rows: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    return (*_matrices(1)(rows, dtype, device), torch.randn(COLUMNS, device=device, dtype=dtype))


def _with_two_rows(rows: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    return (*_with_row(rows, dtype, device), torch.randn(COLUMNS, device=device, dtype=dtype))


def _gelu_bias_residual(rows: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    x, bias = _with_row(rows, dtype, device)
    return x, bias, torch.randn_like(x)


def _image(rows: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    x = torch.randn(max(rows // 64, 1), 64, 32, 32, device=device, dtype=dtype)
    scale, shift, mean = [torch.randn(64, device=device, dtype=dtype) for _ in range(3)]
    return x, scale, shift, mean, torch.rand(64, device=device, dtype=dtype) + 0.5


def _labels(rows: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    return *_matrices(1)(rows, dtype, device), torch.randint(COLUMNS, (rows,), device=device)


def _tokens(rows: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    table, scale, shift = _with_two_rows(rows, dtype, device)
    return torch.randint(rows, (rows,), device=device), table, scale, shift


def _positions(rows: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    (x,) = _matrices(1)(rows, dtype, device)
    return torch.zeros_like(x), torch.randint(rows, (rows,), device=device), x


def _heads(rows: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    length = 512
    x = torch.randn(max(rows // length, 1), 16, length, 64, device=device, dtype=dtype)
    angles = torch.randn(length, 64, device=device)
    return x, angles.cos().to(dtype), angles.sin().to(dtype)


def _parameters(rows: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    """100 parameters with gradients and two moments, all of them in the bytes of the case's size."""
    each = max(rows // 400, 1)
    return tuple([torch.rand(each, COLUMNS, device=device, dtype=dtype) for _ in range(100)] for _ in range(4))


def pointwise_chain(x: Any, y: Any) -> Any:
    return torch.sigmoid(x) * y + torch.tanh(x * 0.5) - torch.where(y > 0, x, y * y)


def gelu_bias_residual(x: Any, bias: Any, residual: Any) -> Any:
    return F.gelu(x + bias) + residual


def softmax(x: Any) -> Any:
    return torch.softmax(x, -1)


def layer_norm(x: Any, scale: Any, shift: Any) -> Any:
    return F.layer_norm(x, x.shape[-1:], scale, shift)


def rms_norm(x: Any, scale: Any) -> Any:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * scale


def batch_norm(x: Any, scale: Any, shift: Any, mean: Any, variance: Any) -> Any:
    return F.relu(F.batch_norm(x, mean, variance, scale, shift, training=False))


def batch_norm_of_the_batch(x: Any, scale: Any, shift: Any, mean: Any, variance: Any) -> Any:
    return F.relu(F.batch_norm(x, None, None, scale, shift, training=True))


def rotary(x: Any, cosine: Any, sine: Any) -> Any:
    half = x.shape[-1] // 2
    return x * cosine + torch.cat([-x[..., half:], x[..., :half]], -1) * sine


def adamw(parameters: Any, gradients: Any, first: Any, second: Any) -> Any:
    """One step over all tensors, written as a user would; the new state replaces the old."""
    for p, g, m, v in zip(parameters, gradients, first, second, strict=True):
        m.lerp_(g, 0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        p.mul_(0.9999).addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-3)


MEMORY_BOUND: dict[str, tuple[Callable[..., Any], Make]] = {
    "pointwise chain": (pointwise_chain, _matrices(2)),
    "softmax": (softmax, _matrices(1)),
    "layer norm": (layer_norm, _with_two_rows),
    "gelu-bias-residual": (gelu_bias_residual, _gelu_bias_residual),
    "rms norm": (rms_norm, _with_row),
    "sum inner": (lambda x: x.sum(-1), _matrices(1)),
    "sum outer": (lambda x: x.sum(0), _matrices(1)),
    "sum all": (lambda x: x.sum(), _matrices(1)),
    "cross entropy": (F.cross_entropy, _labels),
    "transpose-add": (lambda x, y: x.view(-1, 1024, 1024).transpose(1, 2) + y.view(-1, 1024, 1024), _matrices(2)),
    "batch norm": (batch_norm, _image),
    "batch norm, training": (batch_norm_of_the_batch, _image),
    "embedding + norm": (lambda i, t, a, b: F.layer_norm(F.embedding(i, t), (COLUMNS,), a, b), _tokens),
    "index_add": (lambda x, i, y: x.index_add(0, i, y), _positions),
    "cumsum": (lambda x: x.cumsum(-1), _matrices(1)),
    "rotary": (rotary, _heads),
    "adamw, 100 tensors": (adamw, _parameters),
}


def _memory_bound(compute: Callable[..., Any], make: Make, size: str, dtype: torch.dtype) -> Callable[[Any], Work]:
    def build(device: torch.device) -> Work:
        rows = SIZES[size] // COLUMNS // dtype.itemsize
        arguments = [make(rows, dtype, device) for _ in range(ROTATED if size == "64 MB" else 1)]
        with torch.no_grad():
            results = compute(*arguments[0])
        written = bytes_of(results)
        if results is None:  # written in place: all arguments but the gradients
            written = bytes_of(arguments[0][0], *arguments[0][2:])
        return Work(compute, arguments, moved=bytes_of(arguments[0]) + written)

    return build


def memory_bound() -> Iterator[Case]:
    for size in SIZES:
        for dtype in DTYPES:
            for name, (compute, make) in MEMORY_BOUND.items():
                yield Case("kernels", name, size, dtype, _memory_bound(compute, make, size, DTYPES[dtype]))


PRODUCTS: dict[str, tuple[tuple[int, int, int], Callable[..., Any]]] = {
    "matmul 4096": ((4096, 4096, 4096), lambda x, w, b: x @ w),
    "matmul 1024": ((1024, 1024, 1024), lambda x, w, b: x @ w),
    "linear + gelu": ((8192, 1024, 4096), lambda x, w, b: F.gelu(torch.addmm(b, x, w))),
    "linear + relu": ((8192, 768, 3072), lambda x, w, b: F.relu(torch.addmm(b, x, w))),
    "linear + bias": ((8192, 4096, 1024), lambda x, w, b: torch.addmm(b, x, w)),
    "linear + silu, odd sizes": ((4097, 1000, 2049), lambda x, w, b: F.silu(x @ w + b)),
    "one row": ((1, 4096, 4096), lambda x, w, b: F.relu(x @ w + b)),
}


def _product(sizes: tuple[int, int, int], compute: Callable[..., Any], dtype: torch.dtype) -> Callable[[Any], Work]:
    def build(device: torch.device) -> Work:
        m, k, n = sizes
        arguments = []
        for _ in range(ROTATED):
            x, w = torch.randn(m, k, device=device, dtype=dtype), torch.randn(k, n, device=device, dtype=dtype)
            arguments.append((x, w * k**-0.5, torch.randn(n, device=device, dtype=dtype)))
        moved = bytes_of(arguments[0]) + m * n * dtype.itemsize
        return Work(compute, arguments, moved=moved, flops=2 * m * n * k)

    return build


def products() -> Iterator[Case]:
    for dtype in ("bfloat16", "float32"):
        for name, (sizes, compute) in PRODUCTS.items():
            size = " x ".join(map(str, sizes))
            yield Case("matmul", name, size, dtype, _product(sizes, compute, DTYPES[dtype]))


def add_one(x: Any) -> Any:
    return x + 1


def chain_of_twenty(x: Any) -> Any:
    """Twenty steps that cannot be one kernel on a GPU: sums over rows and over columns in turn."""
    for _ in range(10):
        x = x - x.mean(0)
        x = x * 0.5 + x.mean(1, keepdim=True)
    return x


def _launches(compute: Callable[..., Any]) -> Callable[[Any], Work]:
    return lambda device: Work(compute, [(torch.randn(128, 128, device=device),)])


def launches() -> Iterator[Case]:
    for how in ("host", "wall"):
        for name, compute in (("x + 1", add_one), ("chain of 20 kernels", chain_of_twenty)):
            yield Case("launch", f"{name}, {how}", "128 x 128", "float32", _launches(compute), how=how)
