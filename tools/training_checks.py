"""What tests and benchmarks of training share: a loss for any model, its gradients, models without dropout, a bound on errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import zoo

_DROPOUT = ("p", "dropout", "drop_prob", "dropout_prob", "attention_dropout", "dropout_rate")


def loss_of(outputs: Any) -> torch.Tensor:
    """The mean square of the first floating-point output, computed in float32 or float64."""
    first = next(t for t in zoo.tensors_of(outputs) if t.is_floating_point())
    return (first if first.dtype == torch.float64 else first.float()).square().mean()


def gradients(model: torch.nn.Module, run: Callable[..., Any], inputs: Mapping[str, Any]) -> list[torch.Tensor | None]:
    """The gradients of the model's parameters after one forward and backward pass of `run`, the model or a compiled form of it."""
    for parameter in model.parameters():
        parameter.grad = None
    loss_of(run(**inputs)).backward()
    return [parameter.grad for parameter in model.parameters()]


def without_dropout(model: torch.nn.Module) -> torch.nn.Module:
    """The model itself, its dropout probabilities set to zero."""
    for module in model.modules():
        for name in _DROPOUT:
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def assert_near(
    mine: Sequence[torch.Tensor | None], theirs: Sequence[torch.Tensor | None], exact: Sequence[torch.Tensor | None]
) -> None:
    """Raise AssertionError unless each tensor is as near to float64's as eager's is, to a factor of ten."""
    for one, other, reference in zip(mine, theirs, exact, strict=True):
        assert (one is None) == (other is None) == (reference is None)
        if one is not None and other is not None and reference is not None:
            own = max((other - reference).abs().max().item(), 1e-6 * reference.abs().max().item(), 1e-9)
            error = (one - reference).abs().max().item()
            assert error <= 10 * own, f"an error of {error:.3g}, where eager's is {own:.3g}"
