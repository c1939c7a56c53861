"""Sequences of different lengths as rows of one padded tensor, and back: Python code that is traced in place of PyTorch's two kernels.

    values (17, 64), offsets [0, 5, 8, 17]      <=>     padded (3, 9, 64)

The kernels (aten::_jagged_to_padded_dense_forward and its inverse) are differentiable below autograd only, and nothing is fused with them.
"""

from __future__ import annotations

import math
from typing import Any

import torch


def fill_of(padding: float, dtype: torch.dtype) -> float:
    """The number that PyTorch's kernel for CPUs pads with (aten/src/ATen/native/nested): infinite ones are the ends of an integer dtype."""
    if dtype.is_floating_point:
        return padding
    if math.isinf(padding):
        ends = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
        return ends[padding > 0]
    if dtype is torch.bool:
        return padding != 0
    least, greatest = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    if math.isnan(padding) or abs(padding) >= 2**63:
        return least
    return (int(padding) - least) % (greatest - least + 1) + least


def padded(
    values: torch.Tensor, offsets: torch.Tensor, longest: int, padding: float, is_found: bool = False
) -> torch.Tensor:
    """Sequences (total, ...) as rows (batch, longest, ...). Longer ones are cut off.

    is_found: whether `longest` is a number that only the data tell. The body of a derivative of our own cannot have such sizes.
    """
    columns = torch.arange(longest, device=values.device)
    if is_found:
        return _gathered_rows(values, offsets, columns, padding)
    places = torch.arange(values.shape[0], device=values.device)
    result: torch.Tensor = _Padded.apply(values, offsets, columns, places, padding)
    return result


def without_padding(rows: torch.Tensor, offsets: torch.Tensor, total: int, is_found: bool = False) -> torch.Tensor:
    """Sequences (total, ...) of rows (batch, longest, ...), with zeros behind the last one and where rows are too short.

    is_found: whether `total`, or a size of `rows`, is a number that only the data tell.
    """
    columns = torch.arange(rows.shape[1], device=rows.device)
    places = torch.arange(total, device=rows.device)
    if is_found:
        return _gathered_values(rows, offsets, columns, places)
    result: torch.Tensor = _WithoutPadding.apply(rows, offsets, columns, places)
    return result


class _Padded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Any, offsets: Any, columns: Any, places: Any, padding: float) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(offsets, columns, places)
        return _gathered_rows(values, offsets, columns, padding)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return _gathered_values(gradient, *ctx.saved_tensors), None, None, None, None


class _WithoutPadding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Any, offsets: Any, columns: Any, places: Any) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(offsets, columns)
        return _gathered_values(rows, offsets, columns, places)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return _gathered_rows(gradient, *ctx.saved_tensors, 0.0), None, None, None


def _gathered_rows(values: torch.Tensor, offsets: torch.Tensor, columns: torch.Tensor, padding: float) -> torch.Tensor:
    rest = values.shape[1:]
    if values.shape[0] == 0:
        return values.new_full((offsets.shape[0] - 1, columns.shape[0], *rest), padding)
    rows = offsets[:-1, None] + columns
    is_inside = rows < offsets[1:, None]
    found = values[torch.where(is_inside, rows, 0)]
    return torch.where(is_inside.view(*is_inside.shape, *[1] * len(rest)), found, values.new_full((), padding))


def _gathered_values(
    rows: torch.Tensor, offsets: torch.Tensor, columns: torch.Tensor, places: torch.Tensor
) -> torch.Tensor:
    sequence = torch.searchsorted(offsets[1:], places, right=True).clamp(max=rows.shape[0] - 1)
    position = places - offsets[sequence]
    is_inside = (position < columns.shape[0]) & (places < offsets[-1])
    found = rows[sequence, torch.where(is_inside, position, 0)]
    return torch.where(is_inside.view(-1, *[1] * (rows.dim() - 2)), found, rows.new_zeros(()))
