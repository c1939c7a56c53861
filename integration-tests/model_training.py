"""What the tests of models in training share: a loss, its gradients, and how near to float64's they have to be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import zoo


def loss_of(outputs: Any) -> torch.Tensor:
    """The mean square of the first floating-point output, in float32 at least."""
    first = next(t for t in zoo.tensors_of(outputs) if t.is_floating_point())
    return (first if first.dtype == torch.float64 else first.float()).square().mean()


def gradients(model: torch.nn.Module, run: Callable[..., Any], inputs: Mapping[str, Any]) -> list[torch.Tensor | None]:
    """The gradients of the model's parameters by one pass of `run`, which is the model or what it was compiled to."""
    for parameter in model.parameters():
        parameter.grad = None
    loss_of(run(**inputs)).backward()
    return [p.grad for p in model.parameters()]


def assert_as_near_as_eager(
    mine: Sequence[torch.Tensor | None], theirs: Sequence[torch.Tensor | None], exact: Sequence[torch.Tensor | None]
) -> None:
    """To a factor of ten, each tensor is as near to float64's as eager's; None stands where eager has None."""
    for one, other, reference in zip(mine, theirs, exact, strict=True):
        assert (one is None) == (other is None) == (reference is None)
        if one is not None and other is not None and reference is not None:
            own = max((other - reference).abs().max().item(), 1e-6 * reference.abs().max().item(), 1e-9)
            assert (one - reference).abs().max().item() <= 10 * own
