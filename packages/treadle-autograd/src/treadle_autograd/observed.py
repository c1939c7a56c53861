"""Graphs of several outputs: what is seen of the gradients of each is what eager shows.

    def f(x, w): h = x @ w; return h, tanh(h)

One compiled backward graph takes the tangents of both outputs to the gradient of `w`, and nobody sees the gradient that `tanh(h)` sends to
`h`. Usually nobody looks. Somebody does who has registered a hook on `h` or called `h.retain_grad()`, and who asks
``torch.autograd.grad(loss, h)``. So every output gets a node of its own in autograd's graph, above those that it is computed from:

    CompiledBackward <- OutputNode <- h <- OutputNode <- tanh(h)

The node keeps hooks on an output from being called in a backward pass that does not reach it. And its backward pass finds out whether
somebody looks (`Observers.are_there`). If so, PyTorch's own formulas give the gradients of the outputs below, and `CompiledBackward`
computes what reaches the inputs by other ways than these (`rerun.DifferentiableRun`).
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any

import torch

from .asked_gradients import named_inputs, node_of
from .contract import Mutation
from .size_reader import SizeReader
from .wrapper import alias, writing

if TYPE_CHECKING:
    from .joint import JointTrace
    from .kept.program import KeptTrace

# A leaf whose node is in the graph of every `OutputNode` with sources. No gradient ever reaches it. The engine plans to execute its node in
# a plain backward pass, and does not where the caller says which gradients it wants (`torch.autograd.grad`, `backward(inputs=...)`).
with torch.inference_mode(False), torch.enable_grad():  # whatever is in force where this is imported
    _PROBE = torch.zeros((), requires_grad=True)
    _PROBE_NODE: Any = _PROBE.expand(1).grad_fn.next_functions[0][0]  # type: ignore[union-attr]


class Observers:
    """Who looks at the gradients of the outputs of one call that other outputs are computed from."""

    def __init__(self) -> None:
        self._outputs: dict[int, tuple[weakref.ref[torch.Tensor], Mapping[int, Any]]] = {}
        self._cut_in = -1  # the backward pass in which somebody looked; -1 is none

    def watch(self, position: int, output: torch.Tensor) -> None:
        """Keep an eye on the hooks of `output`, as long as it lives and after."""
        # Asked for first: a view that another's changes count for gets a new node now, and PyTorch crashes if it has empty hooks.
        node: Any = output.grad_fn
        # What `Tensor.register_hook` does for the first hook. The mapping outlives the tensor.
        hooks: OrderedDict[int, Any] = OrderedDict()
        output._backward_hooks = hooks
        node._register_hook_dict(output)
        if not isinstance(node, _OUTPUT_NODE):
            node.metadata[_WATCHED_BY] = self
        self._outputs[position] = (weakref.ref(output), hooks)

    def alive(self) -> dict[int, torch.Tensor]:
        """The outputs that are watched and still there, by position."""
        found = {position: reference() for position, (reference, _) in self._outputs.items()}
        return {position: output for position, output in found.items() if output is not None}

    def were_there(self) -> bool:
        """What `are_there` has answered in the backward pass that runs now."""
        return self._cut_in != -1 and self._cut_in == torch._C._current_graph_task_id()

    def are_there(self) -> bool:
        """Whether somebody looks, in the backward pass that runs now. The answer for one pass stays the same."""
        if self.were_there():
            return True
        there = self._are_named() or any(map(_is_observed, self._outputs.values()))
        if there:
            self._cut_in = torch._C._current_graph_task_id()
        return there

    def _are_named(self) -> bool:
        """Whether the caller may have named one of the outputs. Behind gradients that are differentiated again, one may be named later."""
        if torch._C._will_engine_execute_node(_PROBE_NODE):
            return False
        named = None if torch.is_grad_enabled() else named_inputs()
        return named is None or any(self._leads_to_output(node_of(given)) for given in named)

    def _leads_to_output(self, node: Any) -> bool:
        """Whether the node is that of an output, or of an input that an output has been copied into."""
        nodes = [] if node is None else _down_to_copies(node)
        return any(map(self._are_at, nodes))

    def _are_at(self, node: Any) -> bool:
        if isinstance(node, _OUTPUT_NODE):
            return node.call.observers is self  # type: ignore[no-any-return]
        return node.metadata.get(_WATCHED_BY) is self  # type: ignore[no-any-return]


_WATCHED_BY = "treadle_observers"  # in the metadata of nodes of returned views, which are PyTorch's own


def _down_to_copies(node: Any) -> list[Any]:
    """The node of a tensor and those right below it. Copies into parts of a tensor lie on top of each other, below the node of a view."""
    found = [node, *_below(node)]
    copies = [n for n in found if n.name() == _COPY_INTO_PART]
    while copies:
        below = _below(copies.pop())
        found += below
        copies += [n for n in below if n.name() == _COPY_INTO_PART]
    return found


def _below(node: Any) -> list[Any]:
    return [n for n, _ in node.next_functions if n is not None]


_COPY_INTO_PART = "torch::autograd::CopySlices"


NOBODY = Observers()
"""Of calls whose outputs are not computed from each other."""


def _is_observed(watched: tuple[weakref.ref[torch.Tensor], Mapping[int, Any]]) -> bool:
    reference, hooks = watched
    output = reference()
    return bool(hooks) or (output is not None and output.retains_grad)


class OutputNode(torch.autograd.Function):
    """The node of one output.

    Arguments: the call and the output's position; a list of the output, which autograd must not take for an input; a tensor without memory
    in its place among the results of the compiled graph, which carries its tangent there; if it is computed from other outputs, the probe
    and these outputs.
    """

    @staticmethod
    def forward(
        ctx: Any, call: Any, position: int, value: list[torch.Tensor], edge: Any, *probe_and_sources: Any
    ) -> Any:
        ctx.call, ctx.position = call, position
        ctx.kept = None if call.passes is None else call.passes.keeper(call.program.joint.tangents.index(position))
        ctx.set_materialize_grads(False)
        return value.pop()

    @staticmethod
    def backward(ctx: Any, tangent: Any) -> Any:
        n_others = len(ctx.needs_input_grad) - 4
        others: list[Any] = [None] * n_others
        if n_others and tangent is not None and ctx.call.observers.are_there():
            others[1:] = gradients_of_sources(ctx.call, ctx.position, tangent)
        return (None, None, None, tangent, *others)


_OUTPUT_NODE: Any = OutputNode._backward_cls  # type: ignore[attr-defined]
# `Function.apply` without what only transforms of `torch.func` need: under those, no compiled graph runs.
_apply_output_node = super(torch.autograd.Function, OutputNode).apply


class Connections:
    """The nodes of outputs and the returned views of a program, in the order in which a call makes them. False if there are none.

    sources  place -> the places of what it is computed from (`JointTrace.sources`)
    views    place -> the view, and the function that makes it
    """

    def __init__(self, joint: JointTrace | KeptTrace) -> None:
        self.sources = joint.sources
        sizes = SizeReader(joint.input_values, dict(joint.contract.numbers)) if joint.views else None
        self.views = {
            joint.n_outputs + k: (view, alias(view.geometry, None, view.relation, sizes))  # type: ignore[arg-type]
            for k, view in enumerate(joint.views)
        }
        alone: dict[int, tuple[int, ...]] = {m.position: () for m in joint.contract.mutations if m.has_history}
        self.order = tuple(TopologicalSorter({**alone, **joint.sources}).static_order())

    def __bool__(self) -> bool:
        return bool(self.sources)


def connect(
    call: Any,
    primals: Sequence[Any],
    results: Sequence[Any],
    values: Mapping[int, torch.Tensor],
    written: Mapping[int, tuple[torch.Tensor, Mutation]],
) -> tuple[Any, ...]:
    """Put the outputs in the place of their edges among `results`, each behind those that it is computed from, and the returned views at
    their places behind all results.

    written: as in `with_histories`. What is computed from such an output is computed from the input that it is copied into.
    """
    joint, connections = call.program.joint, call.program.connections
    outputs = [*results, *[None] * len(connections.views)]
    call.apart = frozenset(k for k, (t, mutation) in written.items() if mutation.has_older_views and t._is_view())
    for place in connections.order:
        if place in connections.views:
            view, make = connections.views[place]
            base = primals[view.input] if view.source is None else outputs[view.source]
            outputs[place] = make(base, primals, outputs)
            continue
        if place in values:
            sources = [outputs[k] for k in connections.sources[place] if k not in call.apart]
            probe_and_sources = [_PROBE, *sources] if sources else []
            outputs[place] = _apply_output_node(call, place, [values[place]], outputs[place], *probe_and_sources)
        if place in written:
            outputs[place] = _with_history(outputs[place], *written[place])
    for place in joint.cuts:
        call.observers.watch(place, outputs[place])
    return tuple(outputs)


def with_histories(results: Sequence[Any], written: Mapping[int, tuple[torch.Tensor, Mutation]]) -> tuple[Any, ...]:
    """The results with `written` in their places: the inputs that the program changes in place under autograd, by position, and how
    it does."""
    return tuple(_with_history(r, *written[k]) if k in written else r for k, r in enumerate(results))


def _with_history(value: torch.Tensor, target: torch.Tensor, mutation: Mutation) -> torch.Tensor:
    """`target` with this value and its history, as many versions later as eager has it.

    The copy counts as the last of the changes: a view that is changed afterwards, if only by its number, gets a new node in autograd's
    graph, and what leads to this one would not lead there."""
    if mutation.bumps > 1:
        torch._C._autograd._unsafe_set_version_counter((target,), (target._version + mutation.bumps - 1,))
    with writing():
        target.copy_(value)
    return target


def gradients_of_sources(call: Any, position: int, tangent: torch.Tensor) -> Sequence[Any]:
    """What the output at `position` sends to each of its sources, without what goes on from there to others of them."""
    joint = call.program.joint
    run = call.rerun_cut()
    ends = [run.ends[joint.cuts[source]] for source in joint.sources[position] if source not in call.apart]
    return run.gradients([run.outputs[position]], ends, [tangent])  # type: ignore[no-any-return]
