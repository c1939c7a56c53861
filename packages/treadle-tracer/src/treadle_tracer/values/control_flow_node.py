"""A branch or a loop over values of tensors as one node of a traced graph.

    torch.cond(p, f, g, (x,))         ==>     %y = cond([%p, %x], [%w]);  %y[0]    target: ControlFlow("cond", (body of f, body of g))

The node gives the leaves of the result, in contiguous memory of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx


@dataclass(frozen=True)
class FlowBody:
    """Graph of (*leaves, *lifted) -> leaves of a result. lifted: which of the node's lifted values it reads, by position."""

    graph: fx.GraphModule
    lifted: tuple[int, ...]

    def run(self, leaves: Sequence[Any], lifted: Sequence[Any]) -> Sequence[Any]:
        return self.graph.forward(*leaves, *[lifted[k] for k in self.lifted])  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class ControlFlow:
    """The target of the node.

    control_flow   "cond": (predicate, *operands), bodies for true and false; "while_loop": carried values, the condition and the body
    bodies         see there
    """

    control_flow: str
    bodies_of: tuple[FlowBody, FlowBody]

    @property
    def __name__(self) -> str:  # FX prints the target of a call by these names
        return self.control_flow

    def __call__(self, leaves: Sequence[Any], lifted: Sequence[Any]) -> list[torch.Tensor]:
        first, second = self.bodies_of
        if self.control_flow == "cond":
            results = (first if leaves[0] else second).run(leaves[1:], lifted)
        else:
            results = leaves
            while first.run(results, lifted)[0]:
                results = second.run(results, lifted)
        outside = {t.untyped_storage()._cdata for t in (*leaves, *lifted) if isinstance(t, torch.Tensor)}
        own: list[torch.Tensor] = []
        for result in results:
            shared = result.untyped_storage()._cdata in outside
            own.append(result.clone(memory_format=torch.contiguous_format) if shared else result.contiguous())
            outside.add(own[-1].untyped_storage()._cdata)
        return own

    def results(self, leaves: Sequence[Any], lifted: Sequence[Any]) -> list[torch.Tensor]:
        """Tensors with the metadata of the results, without running what depends on values. For fake tensors."""
        found = self.bodies_of[0].run(leaves[1:], lifted) if self.control_flow == "cond" else leaves
        return [t.new_empty(t.shape) for t in found]
