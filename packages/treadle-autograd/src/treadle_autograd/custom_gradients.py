"""Calls of custom `autograd.Function`s: nodes whose targets connect outputs with inputs in autograd's graph (docs/contracts.md, section 3).

    %y = mul(%x, 2)                                   recorded: mul; and, in the backward part, the operators of the backward body
    %h = custom_gradient((%x,), (%y,), (), ())        reference graph: mul without a history, and the call itself, so that a second run
    %out = %h[0]                                      under autograd gives the function's own gradients

The target makes the node of autograd's graph; the trace supplies what runs the graph of the backward body. So the operators of that body
are recorded when PyTorch's engine calls it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from .bodies import RunBody, RunCall, body_runner
from .errors import UnsupportedGraph
from .histories import functions_behind
from .linearity import is_linear
from .recorder import AtenRecorder


def is_custom_gradient(node: fx.Node) -> bool:
    """Whether the node gives tensors the history of a custom autograd function."""
    return hasattr(node.target, "bodies")


@dataclass
class CustomCall:
    """One such call of a recorded graph.

    arguments     inputs, outputs, saved and kept values, each a tuple of nodes of the recorded graph, constants and None
    functions     the nodes that the call has made in autograd's graph
    materialises  whether gradients that are not defined are zeros to it
    tangents      the numbers of the tangents from which autograd reaches it
    gradients     what its backward body has given to autograd: nodes of the recorded graph that computes the gradients
    linear        for each run of the body, whether its gradients are linear in those that it was given
    """

    target: Callable[..., Any]
    arguments: tuple[tuple[Any, ...], ...]
    functions: frozenset[Any]
    materialises: bool
    tangents: frozenset[int] = field(default=frozenset())
    gradients: list[Any] = field(default_factory=list)
    linear: list[bool] = field(default_factory=list)

    @property
    def is_linear(self) -> bool:
        """Whether gradients may reach the body in parts. Where it has never run, none do."""
        return all(self.linear)

    @property
    def outputs(self) -> tuple[Any, ...]:
        return self.arguments[1]

    def nodes(self) -> Iterator[fx.Node]:
        """All nodes among the arguments."""
        for group in self.arguments:
            yield from (node for node in group if isinstance(node, fx.Node))

    def is_computed(self, defined: Collection[int]) -> bool:
        """Whether a backward graph with zeros for the other tangents gives autograd's gradients where only `defined` are given.

        It does not where autograd would not call the backward body, or where the body tells missing gradients from zeros.
        """
        if self.is_left_out(defined):
            return False
        return self.materialises or self.tangents.issubset(defined)

    def is_left_out(self, defined: Collection[int]) -> bool:
        """Whether autograd does not call the backward body where only these tangents are given."""
        return bool(self.tangents) and self.tangents.isdisjoint(defined)

    def why_not_without(self, absent: Collection[int], gone: Collection[fx.Node]) -> str | None:
        """Why a graph without the `absent` tangents, and the nodes `gone` that are computed from them alone, does not give autograd's
        gradients as far as this call goes, or None."""
        if self.tangents.isdisjoint(absent):
            return None
        if not self.tangents.issubset(absent):
            return (
                "a function of the program tells gradients that are not defined from zeros, or computes with the zeros"
            )
        if not all(gradient in gone for gradient in self.gradients):
            return "a function of the program gives a gradient that is not computed from those it is given"
        return None


def call_custom_gradient(node: fx.Node, args: Any, recorder: AtenRecorder, run_call: RunCall) -> tuple[Any, ...]:
    """Carry out the node's call on functional tensors, and note it. The graph of its backward body is run with `run_call`."""
    target: Any = node.target

    gradients: list[Any] = []
    linear: list[bool] = []
    results = target(*args, run=_noting(gradients, linear, args, recorder, run_call))
    if recorder.for_training:
        functions = frozenset(result.grad_fn for result in results if result.grad_fn is not None)
        inputs, *others = (tuple(recorder.node_of_value(value) for value in group) for group in args)
        if target.dirty:
            inputs = _before_forward(args[0], inputs, target, recorder)
            target = replace(target, dirty=())  # in the recorded graph, the changed argument is another value
        call = CustomCall(target, (inputs, *others), functions, target.materialises, gradients=gradients, linear=linear)
        recorder.custom_calls.append(call)
    return results


def _noting(gradients: list[Any], linear: list[bool], args: Any, recorder: AtenRecorder, run_call: RunCall) -> RunBody:
    """What runs the graph of a backward body, and notes the nodes of what it gives, and whether it is linear.

    args: of the call, of which the body reads inputs, saved and kept values beside the gradients it is given. Where it gives a value that
    was saved or kept, the node is a copy's, which belongs to this call alone."""
    run_body = body_runner(recorder, run_call)
    inputs, _, saved, kept = args

    def run(graph: fx.GraphModule, arguments: Sequence[Any]) -> Sequence[Any]:
        known = {recorder.node_of_value(value) for value in (*saved, *kept) if isinstance(value, torch.Tensor)}
        read = {id(value) for value in (*inputs, *saved, *kept)}
        found = list(run_body(graph, arguments))
        given = [value for value in arguments if isinstance(value, torch.Tensor) and id(value) not in read]
        given = [recorder.node_of_value(value) for value in given]
        defined = [recorder.node_of_value(gradient) for gradient in found if gradient is not None]
        linear.append(is_linear(defined, given))
        for k, gradient in enumerate(found):
            if gradient is not None:
                found[k] = gradient.clone() if recorder.node_of_value(gradient) in known else gradient
                gradients.append(recorder.node_of_value(found[k]))
        return found

    return run


def _before_forward(tensors: Any, nodes: Any, target: Any, recorder: AtenRecorder) -> tuple[Any, ...]:
    """The nodes of a call's inputs, for those that the forward body has changed the nodes of their values before it."""
    found = list(nodes)
    for k in target.dirty:
        known = recorder.values_before_no_grad.get(id(tensors[k]))
        if known is None:
            raise UnsupportedGraph(f"{target.name} changes an argument through another tensor", recorder.line())
        found[k] = known
    return tuple(found)


def note_values_without_gradients(args: Any, kwargs: Any, recorder: AtenRecorder) -> None:
    """Note what values tensors have when calls without gradients, such as those of a custom forward body, begin to use them.

    Calls with gradients end such a part of the graph.
    """
    if torch.is_grad_enabled():
        recorder.values_before_no_grad.clear()
        return

    def note(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and torch._is_functional_tensor(value):
            recorder.values_before_no_grad.setdefault(id(value), recorder.node_of_value(value))
        return value

    fx.node.map_aggregate((args, kwargs), note)


def note_tangents(calls: Sequence[CustomCall], outputs: Sequence[torch.Tensor]) -> None:
    """Note for each call from which of the `outputs`, in the order of their tangents, autograd reaches it."""
    if not calls:
        return
    for number, output in enumerate(outputs):
        behind = functions_behind([output.grad_fn])
        for call in calls:
            if not call.functions.isdisjoint(behind):
                call.tangents |= {number}


def forget_unused_gradients(calls: Sequence[CustomCall], graph: fx.Graph) -> None:
    """Forget the gradients of which nothing in the joint graph is computed."""
    live = frozenset(graph.nodes)
    for call in calls:
        call.gradients = [node for node in call.gradients if not isinstance(node, fx.Node) or node in live]


def insert_custom_calls(graph: fx.Graph, copies: dict[fx.Node, fx.Node], pending: list[CustomCall]) -> None:
    """Append to `graph` the calls whose arguments have all been copied to it.

    `copies` maps their outputs to the calls' results from here on; `meta["replaces"]` of a result is the output's name.
    """
    for call in list(pending):
        if not all(node in copies for node in call.nodes()):
            continue
        pending.remove(call)
        arguments = tuple(tuple(copies.get(value, value) for value in group) for group in call.arguments)
        made = graph.call_function(call.target, arguments)
        for k, output in enumerate(call.outputs):
            value, name = copies[output], copies[output].name
            value._rename(f"{name}_value")
            copies[output] = graph.call_function(operator.getitem, (made, k))
            copies[output].meta.update(val=output.meta["val"], replaces=name)
