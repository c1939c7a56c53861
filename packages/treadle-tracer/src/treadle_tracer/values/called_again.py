"""Gradients of a custom function whose gradients apply it again, beyond the orders that are traced.

    class Sin(Function):  backward: gradient * Cos.apply(x)
    class Cos(Function):  backward: -gradient * Sin.apply(x)        derivatives of all orders, without end in a trace

A trace goes round once. From there on derivatives are PyTorch's: the function itself is called again with what it was called with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_WHY_NOT = (
    "treadle computes no third derivatives through {name}, whose gradients apply it again{why}; "
    "leave the function that calls it to eager, with treadle.disable"
)


class Input(NamedTuple):
    """Stands in the arguments for the tensor at this position among the tensors."""

    position: int


@dataclass(frozen=True, eq=False)
class CalledAgain:
    """A call of `function.apply` that can be made again.

    arguments  what it was called with, with an `Input` for each tensor; None where that is not known
    """

    function: Any
    arguments: tuple[Any, ...] | None

    def why_not(self, inputs: Sequence[torch.Tensor], versions: Sequence[int]) -> str | None:
        """Why the call cannot be made with these tensors, which had these versions, or None.

        Raises RuntimeError inside a graph, which cannot hold the call.
        """
        name = self.function.__name__
        if self.arguments is None:
            return _WHY_NOT.format(name=name, why="")
        if any(type(value) not in _PLAIN or torch._is_functional_tensor(value) for value in inputs):
            raise RuntimeError(_WHY_NOT.format(name=name, why=", inside a graph"))
        if [value._version for value in inputs] != list(versions):
            return _WHY_NOT.format(name=name, why=", where an argument has been changed in place")
        return None

    def gradients(
        self, inputs: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None]
    ) -> tuple[torch.Tensor | None, ...]:
        """The gradients of the inputs, with histories. tangents: one for each tensor that the call returns, None for no gradient."""
        assert self.arguments is not None
        given = [inputs[arg.position] if type(arg) is Input else arg for arg in self.arguments]
        found = self.function.apply(*given)
        outputs = [value for value in (found if isinstance(found, tuple) else (found,)) if torch.is_tensor(value)]
        pairs = [(o, t) for o, t in zip(outputs, tangents, strict=True) if t is not None and o.requires_grad]
        asking = [value for value in inputs if value.requires_grad]
        if not pairs or not asking:
            return (None,) * len(inputs)
        given_back = [[value for value, _ in pairs], asking, [tangent for _, tangent in pairs]]
        made = iter(torch.autograd.grad(*given_back, create_graph=True, allow_unused=True))  # type: ignore[arg-type]
        return tuple(next(made) if value.requires_grad else None for value in inputs)


__all__ = ["CalledAgain", "Input"]
