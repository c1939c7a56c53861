"""Differentiable gradients of a call, in one backward pass with the call itself: custom functions see the sum of what reaches them.

    y = f(x)                                                     CompiledBackward, the call's node
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)    DifferentiableGradients, a node for each such pass
    (y.sum() + g.square().sum()).backward()                      reaches both

In eager the history of `g` and that of `y` meet in the nodes of `f`. Here `g` has the history of a second run of `f`, and the two meet
behind it, at `x`. Their sum is the same as long as all backward bodies are linear. A custom function's need not be: one that clamps its
gradient must clamp the sum. So the node that runs last in a backward pass differentiates the one second run with all that has reached the
others.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .asked_gradients import keeps_graph

if TYPE_CHECKING:
    from .training import Call


class Leaf(NamedTuple):
    """A tensor that gradients of a second run have been computed from, and the gate behind which its history begins."""

    gate: Any
    tensor: Any


class Part(NamedTuple):
    """A tensor of a second run, and a gradient that has reached it. leaves: what the tensor depends on beside the primals."""

    tensor: torch.Tensor
    gradient: torch.Tensor
    leaves: tuple[Leaf, ...] = ()


@dataclass
class Reached:
    """What one backward pass has sent to nodes of a call. run: which may have no other owner by now. nodes: those that have run."""

    run: SecondRun
    nodes: list[Any] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)


class SecondRun:
    """A call's program, run once more under autograd, and the nodes whose gradients are those of this run.

    It lives as long as one of the gradients' nodes does: the call only knows it weakly.
    """

    def __init__(self, call: Call, node: Any) -> None:
        """node: the call's."""
        self.run = call.rerun()
        places = [place for place, value in enumerate(self.run.inputs) if _requires_grad(value)]
        self.tracked = [call.primals[place][0] for place in places]
        self.inputs = [self.run.inputs[place] for place in places]
        gradients = call.program.joint.gradients
        #: the program's gradients that all nodes lead to, the call's own one included, and where their primals stand in `tracked`
        self._positions = [k for k in call.program.differentiated if gradients[k] in places]
        self.common = [places.index(gradients[k]) for k in self._positions]
        self._nodes = [weakref.ref(node)]
        self._reached: dict[int, Reached] = {}  # by backward passes

    def add(self, node: Any) -> None:
        self._nodes = [known for known in self._nodes if known() is not None]
        self._nodes.append(weakref.ref(node))

    def is_shared(self, node: Any) -> bool:
        """Whether the backward pass that runs now reaches this node and another one of this run."""
        return torch._C._current_graph_task_id() in self._reached or self._is_another_to_come([node])

    def at_node(self, node: Any, parts: Sequence[Part]) -> Sequence[Any]:
        """The gradients of the primals that all nodes lead to, with all that this backward pass has sent to nodes of this run.

        Only the last of these nodes gets them."""
        task = torch._C._current_graph_task_id()
        reached = self._reached.setdefault(task, Reached(self))
        reached.nodes.append(node)
        reached.parts += parts
        if self._is_another_to_come(reached.nodes):
            return [None] * len(self.common)
        del self._reached[task]
        return self.gradients(reached.parts, [self.inputs[k] for k in self.common])

    def at_call(self, node: Any, positions: Sequence[int], given: Sequence[torch.Tensor | None]) -> dict[int, Any]:
        """The gradients where the pass reaches the call's own node, by their positions among the program's.

        positions, given: those of the outputs that have tangents, and the tangents, None where an output has none."""
        return dict(zip(self._positions, self.at_node(node, self.parts(positions, given)), strict=True))

    def parts(self, positions: Sequence[int], given: Sequence[torch.Tensor | None]) -> list[Part]:
        """What tangents send to the outputs at these positions."""
        pairs = zip(positions, given, strict=True)
        return [Part(self.run.outputs[k], tangent) for k, tangent in pairs if tangent is not None]

    def _is_another_to_come(self, done: Sequence[Any]) -> bool:
        alive = [node for known in self._nodes if (node := known()) is not None]
        others = [node for node in alive if not any(node is one for one in done)]
        return any(map(torch._C._will_engine_execute_node, others))

    def gradients(self, parts: Sequence[Part], inputs: Sequence[torch.Tensor]) -> Sequence[Any]:
        """The gradients of inputs of this run. In grad mode they are differentiable, behind a node of their own."""
        if not (parts and inputs):
            return [None] * len(inputs)
        tensors, gradients = [part.tensor for part in parts], [part.gradient for part in parts]
        if not torch.is_grad_enabled():
            return self.run.gradients(tensors, inputs, gradients)
        leaves = list({id(leaf.gate): leaf for part in parts for leaf in part.leaves}.values())
        behind = [leaf.tensor for leaf in leaves]
        return DifferentiableGradients.apply(  # type: ignore[no-any-return]
            self, tensors, inputs, leaves, *gradients, *behind, *self.tracked
        )


def differentiable_gradients(
    call: Call, node: Any, given: Sequence[torch.Tensor | None], wanted: Sequence[int]
) -> Sequence[Any]:
    """The gradients that are wanted, behind a node of their own. given: the tangents. node: the call's."""
    second = None if call.second_run is None else call.second_run()
    if second is None:
        second = SecondRun(call, node)
        call.second_run = weakref.ref(second)
    joint = call.program.joint
    inputs = [second.run.inputs[joint.gradients[k]] for k in wanted]
    return second.gradients(second.parts(joint.tangents, given), inputs)


class DifferentiableGradients(torch.autograd.Function):
    """The node of gradients that are differentiable. It leads to the gradients they are computed from, and to the primals."""

    @staticmethod
    def forward(
        ctx: Any,
        second: SecondRun,
        tensors: list[torch.Tensor],
        inputs: list[torch.Tensor],
        leaves: list[Leaf],
        *values: Any,
    ) -> Any:
        """values: gradients of the tensors, tensors behind the leaves, primals."""
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*values)
        with torch.enable_grad():
            given = [Leaf(second.run.gate(value), value) for value in values[: len(tensors)]]
            found = second.run.gradients(tensors, inputs, [leaf.gate for leaf in given])
        ctx.second, ctx.found, ctx.leaves = second, found, (*given, *leaves)
        second.add(ctx)
        results = [gradient if gradient is None else gradient.detach() for gradient in found]
        ends = [r for r, f in zip(results, found, strict=True) if f is not None and not f.requires_grad]
        ctx.mark_non_differentiable(*ends)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.saved_tensors  # noqa: B018  (raises what eager raises when they are gone, or have been changed)
        second: SecondRun = ctx.second
        pairs = zip(ctx.found, gradients, strict=True)
        parts = [Part(f, g, ctx.leaves) for f, g in pairs if g is not None and f.requires_grad]
        own = [leaf.gate for leaf in ctx.leaves]
        others = [k for k in range(len(second.inputs)) if k not in second.common]
        apart = [value for value in (*own, *[second.inputs[k] for k in others]) if _requires_grad(value)]
        found = iter(second.gradients(parts, apart))
        of_leaves = [next(found) if _requires_grad(value) else None for value in own]
        of_primals = dict(zip(others, found, strict=True))
        of_primals |= dict(zip(second.common, second.at_node(ctx, parts), strict=True))
        if not keeps_graph():
            ctx.second, ctx.found, ctx.leaves = None, (), ()
        return (None, None, None, None, *of_leaves, *[of_primals[k] for k in range(len(second.inputs))])


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad
