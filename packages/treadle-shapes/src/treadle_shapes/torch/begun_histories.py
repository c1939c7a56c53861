"""Fake tensors for results of other programs: autograd has their history, which begins outside of the trace.

h = layer(x); f(h)          def f(h): h.mul_(2)         PyTorch refuses to change a leaf that requires gradients in place; `h` is none
"""

from __future__ import annotations

from typing import Any

import torch


class BegunHistory(torch.autograd.Function):
    """The node in autograd's graph that stands for all that such a tensor is computed from."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, tensor: list[torch.Tensor]) -> torch.Tensor:
        ctx.set_materialize_grads(False)  # no gradient is none to the leaf, too
        return tensor.pop()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        return gradient, None


_NODE: Any = BegunHistory._backward_cls  # type: ignore[attr-defined]  # the class of its nodes in autograd's graph


def begin_history(tensor: torch.Tensor, leaf: torch.Tensor) -> None:
    """Let `tensor`, which requires no gradients, be computed from `leaf`, as far as autograd knows.

    leaf: a tensor of the same metadata, at which the gradients of `tensor` end. It requires gradients from here on.
    """
    with torch.enable_grad():
        BegunHistory.apply(leaf.requires_grad_(), [tensor])


def is_at_beginning(tensor: torch.Tensor) -> bool:
    """Whether nothing has been added to the history that `begin_history` has given a tensor."""
    return isinstance(tensor.grad_fn, _NODE)
