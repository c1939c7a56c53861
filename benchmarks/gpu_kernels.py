"""Memory-bound kernels, matrix products and launches, as cases of `benchmarks/gpu.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from gpu_cases import Case, Work
from kernel_cases import DTYPES, KERNELS, Kernel, Maker, bytes_moved, bytes_of

SIZES = {"64 MB": 64 << 20, "in cache": 4 << 20}  # bytes of the largest input
ROTATED = 4  # 256 MB of inputs: more than the second-level cache of any GPU
COLUMNS = 1024


def _memory_bound(kernel: Kernel, size: str, dtype: torch.dtype) -> Callable[[Any], Work]:
    def build(device: torch.device) -> Work:
        maker = Maker(SIZES[size] // COLUMNS // dtype.itemsize, COLUMNS, dtype, device)
        arguments = [kernel.arguments(maker) for _ in range(ROTATED if size == "64 MB" else 1)]
        with torch.no_grad():
            results = kernel.compute(*arguments[0])
        return Work(kernel.compute, arguments, moved=bytes_moved(arguments[0], results))

    return build


def memory_bound() -> Iterator[Case]:
    for size in SIZES:
        for dtype in DTYPES:
            for name, kernel in KERNELS.items():
                yield Case("kernels", name, size, dtype, _memory_bound(kernel, size, DTYPES[dtype]))


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
