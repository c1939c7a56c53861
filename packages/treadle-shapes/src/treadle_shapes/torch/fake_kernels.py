"""Implementations on fake tensors for operators whose results have other strides in PyTorch's fake kernels than in eager, or another dtype.

Found by running the operator samples on torch 2.13.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

aten = torch.ops.aten


def roll(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> torch.Tensor:
    """Eager's `roll` is `narrow` and `cat` (aten/src/ATen/native/TensorTransformations.cpp), which keep channels-last. PyTorch's fake
    kernel always gives a row-major result. Empty sizes are left to it; the memory format of `x` tells the layout for symbolic ones."""
    if len(dims) != len(shifts) or any(isinstance(n, int) and n == 0 for n in x.shape):
        return aten.roll.default(x, shifts, dims)
    if not all(isinstance(n, int) for n in x.shape):
        return aten.roll.default(x, shifts, dims).contiguous(memory_format=suggest_memory_format(x))
    for shift, dim in zip(shifts, dims, strict=True):
        start = (x.shape[dim] - shift) % x.shape[dim]
        x = torch.cat([x.narrow(dim, start, x.shape[dim] - start), x.narrow(dim, 0, start)], dim)
    return x


def max_unpool2d(x: torch.Tensor, indices: torch.Tensor, output_size: Sequence[int]) -> torch.Tensor:
    """Eager's CPU kernel keeps channels-last (aten/src/ATen/native/MaxUnpooling.cpp). PyTorch's fake kernel always gives a
    row-major result."""
    result = aten.max_unpool2d.default(x, indices, output_size)
    if x.device.type != "cpu" or x.dim() != 4:
        return result
    return torch.empty_like(result, memory_format=suggest_memory_format(x))


def index_fill(x: torch.Tensor, dim: int, index: torch.Tensor, value: float | torch.Tensor) -> torch.Tensor:
    """Eager's `index_fill` writes into a clone (aten/src/ATen/native/TensorAdvancedIndexing.cpp), also of every other column of a matrix.
    PyTorch's fake kernel is a choice between two tensors."""
    aten.index_fill(x, dim, index, value)  # raises what eager raises
    return torch.empty_like(x)


def log_sigmoid_forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Eager's CPU kernel gives row-major results (aten/src/ATen/native/Activation.cpp). Those of PyTorch's fake kernel have the layout
    of `x`."""
    result, buffer = aten.log_sigmoid_forward.default(x)
    if x.device.type != "cpu":
        return result, buffer
    return torch.empty(x.shape, dtype=result.dtype), torch.empty(x.shape, dtype=buffer.dtype)


def log_sigmoid_backward(grad: torch.Tensor, x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    """PyTorch's fake kernel is a formula that asks whether the buffer has elements."""
    if any(t._has_symbolic_sizes_strides for t in (grad, x)):  # type: ignore[attr-defined]
        return grad * x
    return aten.log_sigmoid_backward.default(grad, x, buffer)


def angle(x: torch.Tensor) -> torch.Tensor:
    """Eager writes the angles of complex numbers into a tensor that had no elements (aten/src/ATen/native/UnaryOps.cpp), which makes it
    row-major. The result of PyTorch's fake kernel has the layout of `x`."""
    result = aten.angle.default(x)
    return torch.empty(x.shape, dtype=result.dtype, device=result.device) if x.is_complex() else result


def hardshrink_backward(grad: torch.Tensor, x: torch.Tensor, lambd: Any) -> torch.Tensor:
    """PyTorch's fake kernel is C++ and takes no symbolic sizes."""
    return _shrink_backward(aten.hardshrink_backward.default, grad, x, lambd)


def softshrink_backward(grad: torch.Tensor, x: torch.Tensor, lambd: Any) -> torch.Tensor:
    """As `hardshrink_backward`."""
    return _shrink_backward(aten.softshrink_backward.default, grad, x, lambd)


def _shrink_backward(func: Any, grad: torch.Tensor, x: torch.Tensor, lambd: Any) -> torch.Tensor:
    if any(t._has_symbolic_sizes_strides for t in (grad, x)):  # type: ignore[attr-defined]
        return torch.where(x > 0, grad, x)
    return func(grad, x, lambd)  # type: ignore[no-any-return]


def sgn(x: torch.Tensor, **options: Any) -> torch.Tensor:
    """The sign of real numbers, whose derivative takes symbolic sizes; that of `sgn` does not."""
    return torch.sgn(x, **options) if x.is_complex() else torch.sign(x, **options)


def quantised(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Fake tensors are not quantised: PyTorch's kernel gives one with the dtype of the argument, and others refuse."""
    raise NotImplementedError("a quantised tensor has no fake tensor")


__all__ = [
    "angle",
    "hardshrink_backward",
    "index_fill",
    "log_sigmoid_backward",
    "log_sigmoid_forward",
    "max_unpool2d",
    "quantised",
    "roll",
    "sgn",
    "softshrink_backward",
]
