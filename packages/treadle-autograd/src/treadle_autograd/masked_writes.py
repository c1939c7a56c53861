"""Writes of one value wherever a mask holds, as a choice between two tensors.

    hidden[mask] = embedding        hidden.copy_(where(mask[..., None], embedding, hidden))

The derivative of the left side for `embedding` selects the rows of the gradient under the mask: how many they are depends on data, so
that no graph of fixed sizes computes it. That of the right side adds the gradient up where the mask holds. Tokens of masked language and
speech models are written so.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch


def as_choice(function: Any, args: Sequence[Any]) -> Callable[..., Any]:
    """`choose` in place of `operator.setitem` where that does the same and has the better derivative; else `function`."""
    return choose if function is operator.setitem and why_not_choice(*args) is None else function


def why_not_choice(x: Any, mask: Any, value: Any) -> str | None:
    """Why `x[mask] = value` is left as it is, or None."""
    if not all(isinstance(part, torch.Tensor) for part in (x, mask, value)) or mask.dtype != torch.bool:
        return "no tensor is written where a mask holds"
    if not (value.requires_grad and torch.is_grad_enabled()):
        return "the value has no gradient"
    if value.dtype != x.dtype or value.device != x.device:
        return "the value would be converted"
    if mask.dim() == 0 or mask.device != x.device:
        return "the mask is one number, or elsewhere"
    n_kept = x.dim() - mask.dim()
    if value.dim() > n_kept and not (value.dim() == n_kept + 1 and _is_one(value.shape[0])):
        return "each place has a value of its own"
    return None


def choose(x: torch.Tensor, mask: torch.Tensor, value: torch.Tensor) -> None:
    """`x[mask] = value` of one value for all places."""
    n_kept = x.dim() - mask.dim()
    if value.dim() > n_kept:
        value = value.squeeze(0)
    x.copy_(torch.where(mask[(..., *[None] * n_kept)], value, x))


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1
