"""Tensors that stand where nobody reads elements."""

from __future__ import annotations

import torch


def without_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without memory of its own, of the shape, dtype and device of `tensor`."""
    return torch.empty((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)


__all__ = ["without_memory"]
