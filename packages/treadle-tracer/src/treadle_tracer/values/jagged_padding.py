"""Sequences of different lengths as rows of one padded tensor, and back: Python code that is traced in place of PyTorch's two kernels.

    values (17, 64), offsets [0, 5, 8, 17]      <=>     padded (3, 9, 64)

The kernels (aten::_jagged_to_padded_dense_forward and its inverse) are differentiable below autograd only, and nothing is fused with them.
"""

from __future__ import annotations

from typing import Any

import torch


def padded(values: torch.Tensor, offsets: torch.Tensor, longest: int, padding: float) -> torch.Tensor:
    """Sequences (total, ...) as rows (batch, longest, ...). Longer ones are cut off."""
    result: torch.Tensor = _Padded.apply(values, offsets, longest, padding)
    return result


def without_padding(rows: torch.Tensor, offsets: torch.Tensor, total: int) -> torch.Tensor:
    """Sequences (total, ...) of rows (batch, longest, ...), with zeros behind the last one and where rows are too short."""
    result: torch.Tensor = _WithoutPadding.apply(rows, offsets, total)
    return result


class _Padded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, offsets: torch.Tensor, longest: int, padding: float) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(offsets)
        ctx.total = values.shape[0]
        return _gathered_rows(values, offsets, longest, padding)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        (offsets,) = ctx.saved_tensors
        return _gathered_values(gradient, offsets, ctx.total), None, None, None


class _WithoutPadding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, offsets: torch.Tensor, total: int) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(offsets)
        ctx.longest = rows.shape[1]
        return _gathered_values(rows, offsets, total)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        (offsets,) = ctx.saved_tensors
        return _gathered_rows(gradient, offsets, ctx.longest, 0.0), None, None


def _gathered_rows(values: torch.Tensor, offsets: torch.Tensor, longest: int, padding: float) -> torch.Tensor:
    rest = values.shape[1:]
    if values.shape[0] == 0:
        return values.new_full((offsets.shape[0] - 1, longest, *rest), padding)
    rows = offsets[:-1, None] + torch.arange(longest, device=values.device)
    is_inside = rows < offsets[1:, None]
    found = values[torch.where(is_inside, rows, 0)]
    return torch.where(is_inside.view(*is_inside.shape, *[1] * len(rest)), found, padding)


def _gathered_values(rows: torch.Tensor, offsets: torch.Tensor, total: int) -> torch.Tensor:
    batch, longest = rows.shape[:2]
    rest = rows.shape[2:]
    if batch == 0 or longest == 0:
        return rows.new_zeros((total, *rest))
    at = torch.arange(total, device=rows.device)
    sequence = torch.searchsorted(offsets[1:], at, right=True).clamp(max=batch - 1)
    position = at - offsets[sequence]
    is_inside = (position < longest) & (at < offsets[-1])
    found = rows[sequence, torch.where(is_inside, position, 0)]
    return torch.where(is_inside.view(-1, *[1] * len(rest)), found, 0)
