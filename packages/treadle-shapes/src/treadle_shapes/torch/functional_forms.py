"""In-place functions by others that have functional forms, for which PyTorch has none that works everywhere."""

from __future__ import annotations

import torch


def fill_diagonal_(x: torch.Tensor, fill_value: float, wrap: bool = False) -> torch.Tensor:
    """`x.fill_diagonal_(fill_value, wrap)` as a write at a mask.

    PyTorch writes to `as_strided` of `x`, which can be functionalised only where `x` is no view. With `wrap`, a matrix with more rows than
    columns has further diagonals, whose places depend on its strides.
    """
    is_cube = x.dim() == 2 or (x.dim() > 2 and all(n == x.shape[0] for n in x.shape))
    if not is_cube or (wrap and x.shape[0] > x.shape[1] + 1):
        return x.fill_diagonal_(fill_value, wrap)
    first = torch.arange(x.shape[0], device=x.device).view(-1, *[1] * (x.dim() - 1))
    mask = None
    for d in range(1, x.dim()):
        same = first == torch.arange(x.shape[d], device=x.device).view(-1, *[1] * (x.dim() - 1 - d))
        mask = same if mask is None else mask & same
    assert mask is not None
    return x.masked_fill_(mask, fill_value)
