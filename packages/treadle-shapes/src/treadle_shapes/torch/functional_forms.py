"""Functions by others that have functional forms: in-place ones for which PyTorch has none that works everywhere, and those that check
values of an argument, which no operator that they consist of does."""

from __future__ import annotations

from typing import Any

import torch

from treadle_shapes.torch.function_transforms import unwrapped


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


def quantile(input: torch.Tensor, q: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`torch.quantile` with eager's check of `q` as a call of its own."""
    _check_quantiles(input, q)
    return torch.quantile(input, q, *args, **kwargs)


def nanquantile(input: torch.Tensor, q: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`torch.nanquantile`, likewise."""
    _check_quantiles(input, q)
    return torch.nanquantile(input, q, *args, **kwargs)


def _check_quantiles(input: torch.Tensor, q: Any) -> None:
    """Numbers are checked while tracing. On other devices eager does not look."""
    if isinstance(q, torch.Tensor) and input.device.type == "cpu":
        values = unwrapped(q)  # those of all calls of a transformed function: the check has no rule for batches
        inside = ((values >= 0) & (values <= 1)).all()
        torch.ops.aten._assert_async.msg(inside, "quantile() q values must be in the range [0, 1]")
