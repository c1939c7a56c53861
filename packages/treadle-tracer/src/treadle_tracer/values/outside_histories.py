"""Fake tensors for results of other programs: autograd has their history, which begins outside of the trace.

h = layer(x); f(h)          def f(h): h.mul_(2)         PyTorch refuses to change a leaf that requires gradients in place; `h` is none
"""

from __future__ import annotations

from typing import Any

import torch


class Outside(torch.autograd.Function):
    """The node in autograd's graph that stands for all that the tensor is computed from."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, tensor: list[torch.Tensor]) -> torch.Tensor:
        return tensor.pop()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return None, None


def begin_history(fake: torch.Tensor) -> None:
    """Let `fake`, which requires no gradients, be computed from something that does, as far as autograd knows."""
    with torch.enable_grad():
        Outside.apply(torch.empty(0, requires_grad=True), [fake])
