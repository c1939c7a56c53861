"""Gradients of a call whose operators the program carries out (`operator_calls`), as one node behind them.

    linear(x, w)        ==>     the calls of aten.t and aten.mm, as `__torch_dispatch__` makes them, without gradients
                                custom_gradient((x,), (y,), ...), whose body has the calls that it makes for PyTorch's derivatives of them

Autograd differentiates the operators that `__torch_dispatch__` is asked for, not the calls by which it answers: the derivative of a product
with a quantised weight is a product with that weight, whatever the numbers were rounded to on the way. PyTorch differentiates the call
on stand-ins, and asks for the operators of the derivative as it does for those of the call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import fx

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import NONE
from treadle_tracer.values.call_effects import storages
from treadle_tracer.values.custom_gradient import Body, CustomGradient, layout_of_gradient
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

Pairs = Sequence[tuple[torch.Tensor, TensorValue]]
"""Stand-ins with the tensors that they stand for."""

Derivative = Callable[[Pairs, Sequence[torch.Tensor], Sequence[TensorValue]], Sequence[Value]]
"""Traces the operators that PyTorch asks for when it differentiates outputs by inputs, for tangents of the outputs; gives the gradients."""


_WHY_ONCE = (
    "treadle computes no gradients of gradients through {name} of a tensor with a __torch_dispatch__; "
    "leave the function that calls it to eager, with treadle.disable"
)


def record(
    tx: TraceContext, name: str, inputs: Pairs, outputs: Pairs, seen: Sequence[TensorValue], derivative: Derivative
) -> None:
    """Give the outputs a history, where the stand-ins have one.

    inputs: the tensors among the arguments, all of them plain. outputs: different tensors, which share memory with no other. seen: all
    plain tensors that operators have been asked with, or have given; autograd saves those that the derivative reads, and checks them
    for changes.
    Raises Unsupported where the derivative cannot be traced.
    """
    asking = [value for stand_in, value in inputs if stand_in.requires_grad]
    body, saved, kept = _body(tx, name, inputs, outputs, seen, derivative)
    fixed = tuple(k for k, (stand_in, _) in enumerate(outputs) if not stand_in.requires_grad)
    why_once = _WHY_ONCE.format(name=name)
    bodies = {((True,) * len(outputs), False): body}
    gradient = CustomGradient(name, bodies, (), fixed, materialises=True, is_once=True, why_once=why_once)
    results = [value for _, value in outputs]
    groups = [[value.node(tx) for value in group] for group in (asking, results, saved)]
    fakes = [[value.fake for value in group] for group in (asking, results, saved)]
    kept_fakes = tuple(node.meta["example_value"] for node in kept)
    with tx.fake_mode:
        found = gradient(*map(tuple, fakes), kept_fakes)
    place = tx.stack_trace()
    node = tx.graph.call("call_function", gradient, (*map(tuple, groups), tuple(kept)), {}, found, place)
    for k, value in enumerate(results):
        value.follow(tx.graph.call("call_function", operator.getitem, (node, k), {}, value.fake, place))


def _body(
    tx: TraceContext, name: str, inputs: Pairs, outputs: Pairs, seen: Sequence[TensorValue], derivative: Derivative
) -> tuple[Body, list[TensorValue], list[fx.Node]]:
    """The derivative, those of the tensors seen that it reads, and what else it reads."""
    before, (attributes, *_), writes = tx.graph.last(), tx.mutations.snapshot(), tx.mutations.writes_outside
    with tx.as_in_backward(False):
        tangents = [_tangent(tx, value, k) for k, (_, value) in enumerate(outputs)]
        found = derivative(outputs, [stand_in for stand_in, _ in inputs if stand_in.requires_grad], tangents)
    now = tx.mutations.snapshot()[0]
    if tx.mutations.writes_outside != writes or any(now.get(key) != names for key, names in attributes.items()):
        raise _refusal(name, "whose derivative writes to something that outlives it")
    gradients: list[fx.Node | None] = []
    for value in found:
        if value is not NONE and not isinstance(value, TensorValue):
            raise _refusal(name, "whose derivative is no plain tensor")
        gradients.append(value.node(tx) if isinstance(value, TensorValue) else None)
    why_not = tx.graph.why_not_take_out(before, gradients)
    if why_not is not None:
        raise _refusal(name, why_not)
    saved = list({value.node(tx): value for value in seen}.values())
    graph, kept, removed = tx.graph.take_out(
        before, [*(t.node(tx) for t in tangents), *(value.node(tx) for value in saved)], gradients
    )
    tx.symbols.forget_nodes(removed)
    saved = _drop_unread(graph, len(tangents), saved)
    memory: set[int] = set().union(*(storages(value.fake) for _, value in outputs))
    results = [value.node(tx) for _, value in outputs]
    for node in (*(value.node(tx) for value in saved), *kept):
        if node not in results and storages(node.meta["example_value"]) & memory:
            raise _refusal(name, "whose derivative reads what its result is a view of")
    return Body(graph, bool(saved), tuple(range(len(kept)))), saved, kept


def _drop_unread(graph: fx.GraphModule, first: int, saved: Sequence[TensorValue]) -> list[TensorValue]:
    """The tensors among `saved`, whose placeholders begin at `first`, that the body reads. The others lose their placeholders."""
    placeholders = graph.graph.find_nodes(op="placeholder")[first : first + len(saved)]
    read = []
    for placeholder, value in zip(placeholders, saved, strict=True):
        if placeholder.users:
            read.append(value)
        else:
            graph.graph.erase_node(placeholder)
    graph.recompile()
    return read


def _tangent(tx: TraceContext, output: TensorValue, number: int) -> TensorValue:
    """A stand-in in the graph for the gradient of an output."""
    size, stride = layout_of_gradient(output.fake)
    with tx.fake_mode:
        fake = torch.empty_strided(size, stride, dtype=output.fake.dtype, device=output.fake.device)
    made: TensorValue = tx.new_tensor(tx.graph.stand_in(f"tangent_{number}", fake), fake)
    return made


def why_not_outputs(inputs: Pairs, outputs: Pairs) -> str | None:
    """Why results cannot be given a history of their own."""
    values = [value for _, value in (*inputs, *outputs)]
    memory = [storages(value.fake) for value in values]
    if len(set(map(id, values))) < len(values) or len(set().union(*memory)) < sum(map(len, memory)):
        return "some of whose arguments and results share memory"
    if any(stand_in._version for stand_in, _ in inputs):
        return "which writes to a tensor"
    return None


def _refusal(name: str, why: str) -> Unsupported:
    return Unsupported("tensor-subclass", f"gradients through {name} of a tensor with a __torch_dispatch__, {why}")


__all__ = ["Pairs", "record", "why_not_outputs"]
