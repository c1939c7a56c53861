"""Gradients of a call whose operators the program carries out (`operator_calls`), as one node behind them.

    linear(x, w)        ==>     the calls of aten.t and aten.mm, as `__torch_dispatch__` makes them, without gradients
                                custom_gradient((x,), (y,), ...), whose body has the calls that it makes for PyTorch's derivatives of them

Autograd differentiates the operators that `__torch_dispatch__` is asked for, not the calls by which it answers: the derivative of a product
with a quantised weight is a product with that weight, whatever the numbers were rounded to on the way. PyTorch differentiates the call
on stand-ins, and asks for the operators of the derivative as it does for those of the call.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

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

_ORDERS = 2  # of derivatives that are traced with a call


class Differentiated(Protocol):
    """The call that is differentiated.

    seen        all plain tensors that operators have been asked with, or have given
    derivative  traces the operators that PyTorch asks for when it differentiates outputs by inputs, for tangents of the outputs, in grad
                mode or not. Gives the gradients, with their stand-ins, and the tangents that they depend on.
    """

    def seen(self) -> Sequence[TensorValue]: ...

    def derivative(
        self, outputs: Pairs, inputs: Sequence[torch.Tensor], tangents: Sequence[TensorValue], grad_mode: bool
    ) -> tuple[Sequence[tuple[torch.Tensor, Value] | None], Pairs]: ...


_WHY_ONCE = (
    "treadle computes no third derivatives through {name} of a tensor with a __torch_dispatch__; "
    "leave the function that calls it to eager, with treadle.disable"
)


def record(tx: TraceContext, name: str, inputs: Pairs, outputs: Pairs, call: Differentiated, order: int = 1) -> None:
    """Give the outputs a history, where the stand-ins have one.

    inputs: the tensors among the arguments, all of them plain. outputs: different tensors, which share memory with no other. order: that of
    the derivative. Autograd saves those of the tensors that the call has seen that the derivative reads, and checks them for changes.
    Raises Unsupported where the derivative cannot be traced.
    """
    asking = [pair for pair in inputs if pair[0].requires_grad]
    seen = list({value.node(tx): value for value in call.seen()}.values())
    traced = [_first(tx, name, asking, outputs, seen, call)]
    if order < _ORDERS:
        traced.append(_differentiable(tx, name, asking, outputs, seen, call, order))
    else:
        # A gradient has no history where it depends on constants only.
        asking = [pair for pair, is_given in zip(asking, traced[0].drop_missing(), strict=True) if is_given]
        if not asking:
            return
    saved = _drop_unread(traced, seen)
    kept = list(dict.fromkeys(node for one in traced for node in one.kept))
    _check_kept(tx, name, outputs, [*(value.node(tx) for value in saved), *kept])
    bodies = {((True,) * len(outputs), bool(k)): one.body(kept) for k, one in enumerate(traced)}
    fixed = tuple(k for k, (stand_in, _) in enumerate(outputs) if not stand_in.requires_grad)
    why_once = _WHY_ONCE.format(name=name) if order == _ORDERS else ""
    gradient = CustomGradient(name, bodies, (), fixed, materialises=True, is_once=bool(why_once), why_once=why_once)
    results = [value for _, value in outputs]
    given = [value for _, value in asking]
    groups = [[value.node(tx) for value in group] for group in (given, results, saved)]
    fakes = [[value.fake for value in group] for group in (given, results, saved)]
    kept_fakes = tuple(node.meta["example_value"] for node in kept)
    with tx.fake_mode:
        found = gradient(*map(tuple, fakes), kept_fakes)
    place = tx.stack_trace()
    node = tx.graph.call("call_function", gradient, (*map(tuple, groups), tuple(kept)), {}, found, place)
    for k, value in enumerate(results):
        value.follow(tx, tx.graph.call("call_function", operator.getitem, (node, k), {}, value.fake, place))


@dataclass
class _Derivative:
    """A derivative that has been traced, its graph of (*tangents, *tensors seen, *edges, *kept) -> gradients.

    edges: how many inputs it is given for their histories. reads_saved: whether it is given those of the tensors seen that are saved.
    """

    graph: fx.GraphModule
    kept: list[fx.Node]
    tangents: int
    edges: int
    reads_saved: bool = True

    def body(self, kept: Sequence[fx.Node]) -> Body:
        """The body of a call that keeps these nodes."""
        self.graph.recompile()
        return Body(self.graph, self.reads_saved, tuple(map(kept.index, self.kept)), tuple(range(self.edges)))

    def drop_missing(self) -> list[bool]:
        """Return those gradients only that there are. Tells which."""
        output = self.graph.graph.output_node()
        results: Any = output.args[0]
        output.args = (tuple(node for node in results if node is not None),)
        return [node is not None for node in results]

    def of_seen(self, count: int) -> list[fx.Node]:
        """The placeholders of the tensors seen."""
        return self.graph.graph.find_nodes(op="placeholder")[self.tangents : self.tangents + count]


def _first(
    tx: TraceContext, name: str, asking: Pairs, outputs: Pairs, seen: Sequence[TensorValue], call: Differentiated
) -> _Derivative:
    """The gradients of the inputs that are asking for them, without a history."""
    before, state = tx.graph.last(), _written(tx)
    with tx.as_in_backward(False):
        tangents = [_stand_in(tx, value, f"tangent_{k}") for k, (_, value) in enumerate(outputs)]
        found, _ = call.derivative(outputs, [stand_in for stand_in, _ in asking], tangents, False)
    _check_written(tx, name, state)
    gradients = [None if pair is None else _plain(name, pair[1]) for pair in found]
    return _take_out(tx, name, before, gradients, [tangents, seen, []])


def _differentiable(
    tx: TraceContext,
    name: str,
    asking: Pairs,
    outputs: Pairs,
    seen: Sequence[TensorValue],
    call: Differentiated,
    order: int,
) -> _Derivative:
    """The gradients of the inputs that are asking for them, as results of tangents and inputs.

    In grad mode PyTorch may ask for other operators. They are carried out without gradients, as those of the call.
    """
    before, state, mode = tx.graph.last(), _written(tx), torch._C._set_grad_enabled
    with tx.as_in_backward(True):
        tangents = [_stand_in(tx, value, f"tangent_{k}") for k, (_, value) in enumerate(outputs)]
        edges = [_stand_in(tx, value, f"input_{k}") for k, (_, value) in enumerate(asking)]
        uses = tx.grad_mode_uses
        tx.change_state(mode, (), True, False)
        with torch.enable_grad():
            found, given = call.derivative(outputs, [stand_in for stand_in, _ in asking], tangents, True)
        if tx.grad_mode_uses > uses:
            raise _refusal(name, "whose derivative asks for the grad mode")
        pairs = [None if pair is None else (pair[0], _plain(name, pair[1])) for pair in found]
        results = _without_shared_memory(tx, [pair for pair in pairs if pair is not None])
        tx.change_state(mode, (), False, True)
        if any(stand_in.requires_grad for stand_in, _ in results):
            leaves = [(stand_in, edge) for (stand_in, _), edge in zip(asking, edges, strict=True)]
            record(tx, name, [*leaves, *given], results, call, order + 1)
    _check_written(tx, name, state)
    values = iter([value for _, value in results])
    gradients = [None if pair is None else next(values) for pair in pairs]
    return _take_out(tx, name, before, gradients, [tangents, seen, edges])


def _written(tx: TraceContext) -> tuple[Any, Any]:
    """What changes when something is written that outlives a body."""
    (attributes, *_), writes = tx.mutations.snapshot(), tx.mutations.writes_outside
    return attributes, writes


def _check_written(tx: TraceContext, name: str, before: tuple[Any, Any]) -> None:
    attributes, writes = _written(tx)
    if writes != before[1] or any(attributes.get(key) != names for key, names in before[0].items()):
        raise _refusal(name, "whose derivative writes to something that outlives it")


def _plain(name: str, value: Value) -> TensorValue | None:
    if value is not NONE and not isinstance(value, TensorValue):
        raise _refusal(name, "whose derivative is no plain tensor")
    return value if isinstance(value, TensorValue) else None


def _without_shared_memory(
    tx: TraceContext, pairs: Sequence[tuple[torch.Tensor, TensorValue | None]]
) -> list[tuple[torch.Tensor, TensorValue]]:
    """The gradients as tensors with memory of their own: autograd takes them for results of a call."""
    found: list[tuple[torch.Tensor, TensorValue]] = []
    nodes = set[fx.Node]()
    for stand_in, value in pairs:
        assert value is not None
        own, memory = value.node(tx), storages(value.fake)
        others = (n for n in own.graph.nodes if n is not own or n.op == "placeholder" or n in nodes)
        if any(storages(n.meta.get("example_value")) & memory for n in others):
            made = tx.run_in_graph("call_function", torch.ops.aten.clone.default, [value], {})
            assert isinstance(made, TensorValue)
            value = made
        nodes.add(value.node(tx))
        found.append((stand_in, value))
    return found


def _take_out(
    tx: TraceContext,
    name: str,
    before: fx.Node,
    gradients: Sequence[TensorValue | None],
    given: Sequence[Sequence[TensorValue]],
) -> _Derivative:
    """Take the calls behind `before` out of the graph. given: tangents, tensors seen, and edges."""
    results = [None if value is None else value.node(tx) for value in gradients]
    why_not = tx.graph.why_not_take_out(before, results)
    if why_not is not None:
        raise _refusal(name, why_not)
    nodes = [value.node(tx) for group in given for value in group]
    graph, kept, removed = tx.graph.take_out(before, nodes, results)
    tx.symbols.forget_nodes(removed)
    return _Derivative(graph, kept, len(given[0]), len(given[2]))


def _drop_unread(traced: Sequence[_Derivative], seen: Sequence[TensorValue]) -> list[TensorValue]:
    """The tensors seen that one of the derivatives reads. The others lose their placeholders."""
    placeholders = [one.of_seen(len(seen)) for one in traced]
    is_read = [any(node.users for node in nodes) for nodes in zip(*placeholders, strict=True)]
    for one, nodes in zip(traced, placeholders, strict=True):
        one.reads_saved = any(node.users for node in nodes)
        for node, is_saved in zip(nodes, is_read, strict=True):
            if not (is_saved and one.reads_saved):
                one.graph.graph.erase_node(node)
    return [value for value, is_saved in zip(seen, is_read, strict=True) if is_saved]


def _check_kept(tx: TraceContext, name: str, outputs: Pairs, kept: Sequence[fx.Node]) -> None:
    """Raise Unsupported where the derivative reads what an output is a view of."""
    memory: set[int] = set().union(*(storages(value.fake) for _, value in outputs))
    results = [value.node(tx) for _, value in outputs]
    for node in kept:
        if node not in results and storages(node.meta["example_value"]) & memory:
            raise _refusal(name, "whose derivative reads what its result is a view of")


def _stand_in(tx: TraceContext, of: TensorValue, name: str) -> TensorValue:
    """A tensor of the graph that a body will be given: the gradient of an output, or an input for its history."""
    size, stride = layout_of_gradient(of.fake)
    with tx.fake_mode:
        fake = torch.empty_strided(size, stride, dtype=of.fake.dtype, device=of.fake.device)
    made: TensorValue = tx.new_tensor(tx.graph.stand_in(name, fake), fake)
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


__all__ = ["Differentiated", "Pairs", "record", "why_not_outputs"]
