"""Tensors whose history begins outside of a trace, at a result of other programs.

    h = layer(x); f(h)          def f(h): h.mul_(2)         PyTorch refuses to change a leaf that requires gradients in place; `h` is none

A trace differentiates by what stands in front of such a tensor: a leaf of its own.
"""

from __future__ import annotations

from typing import Any

import torch


class Begin(torch.autograd.Function):
    """The node in autograd's graph between a leaf and the tensor that stands for a result of other programs."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, tensor: list[torch.Tensor]) -> torch.Tensor:
        return tensor.pop()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None


def begin_history(tensor: torch.Tensor, leaf: torch.Tensor) -> None:
    """Let `tensor`, which requires no gradients, be computed from `leaf`, a tensor of the same metadata, as far as autograd knows."""
    with torch.enable_grad():
        Begin.apply(leaf.requires_grad_(), [tensor])
