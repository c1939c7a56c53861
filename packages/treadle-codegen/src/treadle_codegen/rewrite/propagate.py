"""Fake values of nodes: computing them for new nodes, and again for a whole graph after its layouts changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from treadle_codegen.lower.indexing import as_shape
from treadle_shapes.torch import fake_calls, symbolic_dispatch
from treadle_shapes.torch import operator as operator_record


def fake_mode_of(graph: fx.Graph) -> FakeTensorMode | None:
    """The fake mode of the first fake tensor among the nodes' values."""
    for node in graph.nodes:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        if mode is not None:
            return mode
    return None


@contextmanager
def running(mode: FakeTensorMode) -> Iterator[None]:
    """Operators return fake results, decide nothing about symbolic sizes, and take what they are given: casts stand in the graph, and a
    compile inside of autocast must add none."""
    with mode, torch._C._DisableAutocast():
        if mode.shape_env is None:
            yield
            return
        with symbolic_dispatch():
            yield


def value_of(arg: Any) -> Any:
    """An argument with every node replaced by its fake value."""
    return tree_map(lambda a: a.meta["val"] if isinstance(a, fx.Node) else a, arg)


def insert_call(
    graph: fx.Graph, mode: FakeTensorMode, like: fx.Node, op: Callable[..., Any], *args: Any, **options: Any
) -> fx.Node:
    """A new call at the graph's insertion point with its fake value; user line and trace come from `like`. `options` are no nodes."""
    node = graph.call_function(op, args, options)
    values = value_of(list(args))
    with running(mode):
        node.meta["val"] = fake_calls(mode).call(op, lambda: op(*values, **options), values, options)
    if "stack_trace" in like.meta:
        node.meta["stack_trace"] = like.meta["stack_trace"]
    return node


def propagate_layouts(
    graph: fx.Graph, mode: FakeTensorMode, rules: Mapping[Any, Callable[..., Any]], changed: set[fx.Node]
) -> None:
    """Compute the fake values of `changed` nodes again, and of all nodes behind one whose strides changed.

    `rules` are fake implementations of targets that have none. A view that its argument's new strides do not allow becomes a
    view of a contiguous copy.
    """
    changed = set(changed)
    with running(mode):
        for node in list(graph.nodes):
            if node.op != "call_function" or node.meta.get("opaque"):
                continue
            if node not in changed and not any(n in changed for n in node.all_input_nodes):
                continue
            before = node.meta.get("val")
            compute = rules.get(node.target, node.target)
            try:
                node.meta["val"] = compute(*value_of(node.args), **value_of(node.kwargs))
            except (RuntimeError, ValueError):
                record = operator_record(node.target)
                if record is None or not record.reinterprets:
                    raise
                with graph.inserting_before(node):
                    dense = insert_call(graph, mode, node, _contiguous, node.args[0])
                node.replace_input_with(node.args[0], dense)
                node.meta["val"] = node.target(*value_of(node.args), **value_of(node.kwargs))
            if same_layout(before, node.meta["val"]):
                changed.discard(node)
            else:
                changed.add(node)
    for node in graph.nodes:
        if node.target is _contiguous:
            node.target = torch.ops.aten.clone.default
            node.kwargs = {"memory_format": torch.contiguous_format}


def _contiguous(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.clone.default(x, memory_format=torch.contiguous_format)


def same_layout(a: Any, b: Any) -> bool:
    """Whether two results of a node have the same strides throughout."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return as_shape(a.stride()) == as_shape(b.stride())
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(map(same_layout, a, b))
    return not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor)
