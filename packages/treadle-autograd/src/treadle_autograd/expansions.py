"""Decomposed calls that repeat: what a decomposition has recorded is copied where the same call comes again.

    native_batch_norm_backward(%g1, %x1, ...)       14 nodes, recorded by running the decomposition on fake tensors
    native_batch_norm_backward(%g2, %x2, ...)       the same sizes, strides and numbers: 14 copies with other arguments

Of the nodes of a convolutional network trained with batch norms, half come from decompositions.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from treadle_shapes.torch import fake_like, static_call_key

from .graph_nodes import append_call

if TYPE_CHECKING:
    from .recorder import AtenRecorder

#: The entries of a node's `meta` that tell of its operator. All others tell of the call that it belongs to.
_OF_THE_OPERATOR = ("val", "may_raise", "no_grad", "inside_call")


class Call(NamedTuple):
    """A decomposed call. key: everything that the recorded nodes depend on. tensors: those among the arguments, each once."""

    key: Hashable
    tensors: Sequence[torch.Tensor]


class _Step(NamedTuple):
    """A node as it was when it was recorded: graphs are changed later."""

    node: fx.Node
    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    meta: dict[str, Any]


class _Expansion(NamedTuple):
    """What a decomposition has recorded for a call. result: a node in place of each tensor, which has memory of its own."""

    arguments: tuple[fx.Node, ...]
    steps: tuple[_Step, ...]
    result: Any


class Expansions:
    """What one `AtenRecorder` has recorded, by call."""

    def __init__(self) -> None:
        self._found: dict[Hashable, _Expansion | None] = {}

    @staticmethod
    def call_of(
        recorder: AtenRecorder, func: Any, rule: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Call | None:
        """The call, if the metadata of its arguments are static and tell what `rule` records."""
        found = static_call_key(recorder.mode, func, args, kwargs)
        if found is None or recorder.holds_lifted_number(found[1]):
            return None
        state = recorder.for_training, recorder.calls_with_gradients, bool(recorder.meta.get("of_backward"))
        return Call((rule, found[0], state, id(recorder.function)), found[1])

    def copied(self, recorder: AtenRecorder, call: Call) -> Any:
        """Append copies of what was recorded for such a call and return its result; NotImplemented where nothing is kept."""
        found = self._found.get(call.key)
        if found is None:
            return NotImplemented
        nodes = [recorder.node_of(tensor) for tensor in call.tensors]
        copies = dict(zip(found.arguments, nodes, strict=True))
        graph, said = recorder.recorded.graph, recorder.meta
        for step in found.steps:
            kwargs: Any = fx.map_arg(step.kwargs, copies.__getitem__) if step.kwargs else {}
            args: Any = fx.map_arg(step.args, copies.__getitem__)
            copies[step.node] = made = append_call(graph, step.target, args, kwargs)
            made.meta.update(said)
            made.meta.update(step.meta)
        return _bound(recorder, found.result, copies)

    def keep(self, recorder: AtenRecorder, call: Call, last: fx.Node | None, n_inputs: int, result: Any) -> None:
        """Keep what stands behind `last`, the graph's last node before the call, if it can be copied.

        n_inputs: the number of the graph's inputs before the call.
        """
        if call.key in self._found:
            return
        arguments = tuple(recorder.node_of(tensor) for tensor in call.tensors)
        nodes = _nodes_behind(recorder.recorded.graph, last)
        known = {*arguments, *nodes}
        reads_known = all(used in known for node in nodes for used in node.all_input_nodes)
        is_plain = all(isinstance(node.meta.get("val"), (FakeTensor, tuple, list)) for node in nodes)
        is_apart = len(recorder.recorded.inputs) == n_inputs and len(set(arguments)) == len(arguments)
        kept = None
        if reads_known and is_plain and is_apart:
            memory = {tensor.untyped_storage()._cdata for tensor in call.tensors}
            described = _described(recorder, result, set(nodes), memory)
            if described is not NotImplemented:
                kept = _Expansion(arguments, tuple(map(_step, nodes)), described)
        self._found[call.key] = kept


def _bound(recorder: AtenRecorder, result: Any, copies: Mapping[fx.Node, fx.Node]) -> Any:
    """The result of a copy. Its tensors are new."""
    if isinstance(result, fx.Node):
        made = copies[result]
        made.meta["val"] = fake = fake_like(recorder.mode, result.meta["val"])
        recorder.bind(fake, made)
        return fake
    return result if result is None else type(result)(_bound(recorder, item, copies) for item in result)


def _described(recorder: AtenRecorder, result: Any, nodes: set[fx.Node], memory: set[int]) -> Any:
    """`result` with nodes in place of tensors; NotImplemented where a tensor is not new. Adds the memory of its tensors to `memory`."""
    if result is None:
        return None
    if type(result) in (tuple, list):
        items = [_described(recorder, item, nodes, memory) for item in result]
        return NotImplemented if any(item is NotImplemented for item in items) else type(result)(items)
    if type(result) is not FakeTensor or not _has_plain_memory(result):
        return NotImplemented
    node, storage = recorder.node_of(result), result.untyped_storage()._cdata
    if node not in nodes or storage in memory:
        return NotImplemented
    memory.add(storage)
    return node


def _nodes_behind(graph: fx.Graph, last: fx.Node | None) -> Sequence[fx.Node]:
    found: list[fx.Node] = []
    node = last.next if last is not None else next(iter(graph.nodes), None)
    while node is not None and node.op != "root":
        found.append(node)
        node = node.next
    return found


def _step(node: fx.Node) -> _Step:
    assert callable(node.target)
    meta = {name: node.meta[name] for name in _OF_THE_OPERATOR if name in node.meta}
    return _Step(node, node.target, node.args, dict(node.kwargs), meta)


def _has_plain_memory(tensor: torch.Tensor) -> bool:
    """Whether `fake_like` makes such a tensor."""
    is_plain = tensor.layout is torch.strided and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())
    return is_plain and tensor.storage_offset() == 0
