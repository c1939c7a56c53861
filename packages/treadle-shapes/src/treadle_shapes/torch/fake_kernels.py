"""Implementations on fake tensors for operators whose results have other strides in PyTorch's fake kernels than in eager.

Found by running the operator samples on torch 2.13.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

aten = torch.ops.aten


def roll(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> torch.Tensor:
    """Eager's `roll` is `narrow` and `cat` (aten/src/ATen/native/TensorTransformations.cpp), which keep channels-last. PyTorch's fake
    kernel always gives a row-major result. Symbolic and empty sizes are left to it."""
    if len(dims) != len(shifts) or any(not isinstance(n, int) or n == 0 for n in x.shape):
        return aten.roll.default(x, shifts, dims)
    for shift, dim in zip(shifts, dims, strict=True):
        start = (x.shape[dim] - shift) % x.shape[dim]
        x = torch.cat([x.narrow(dim, start, x.shape[dim] - start), x.narrow(dim, 0, start)], dim)
    return x


__all__ = ["roll"]
