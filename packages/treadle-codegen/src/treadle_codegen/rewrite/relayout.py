"""Other layouts inside a graph, whose outputs keep the strides they have."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from treadle_codegen.lower.indexing import Shape, as_shape, is_dense, same_strides, slowest_first
from treadle_codegen.rewrite.propagate import insert_call

aten = torch.ops.aten
MEMORY_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Number of dimensions -> the layout whose channels are neighbours in memory."""


def why_not_relayout(output: fx.Node) -> str | None:
    """Why layouts inside the graph must not change: an output whose strides could not be given back."""
    for node in output.args[0]:  # type: ignore[union-attr]
        value = node.meta.get("val") if isinstance(node, fx.Node) else None
        if isinstance(value, torch.Tensor) and not is_dense(as_shape(value.shape), as_shape(value.stride())):
            return f"output {node} is not dense"
    return None


def channels_last(graph: fx.Graph, x: fx.Node, like: fx.Node, mode: FakeTensorMode) -> fx.Node:
    """A channels-last copy of a tensor, for the node `like`, before which it is inserted."""
    memory_format = MEMORY_FORMATS[x.meta["val"].dim()]
    return insert_call(graph, mode, like, aten.clone.default, x, memory_format=memory_format)


def drop_needless_copies(graph: fx.Graph, readers: Collection[Any]) -> None:
    """Remove channels-last copies of what is channels-last already, if only operators `readers` read them."""
    for node in list(graph.nodes):
        if node.target is aten.clone.default and node.kwargs.get("memory_format") in MEMORY_FORMATS.values():
            source = node.args[0]
            if all(u.target in readers for u in node.users) and _dense_as(source, node):
                node.replace_all_uses_with(source)
                graph.erase_node(node)


def _dense_as(a: Any, b: fx.Node) -> bool:
    x, y = a.meta["val"], b.meta["val"]
    return same_strides(as_shape(x.shape), as_shape(x.stride()), as_shape(y.stride()))


def _strides_of(node: Any) -> Shape | None:
    value = node.meta["val"] if isinstance(node, fx.Node) else None
    return as_shape(value.stride()) if isinstance(value, torch.Tensor) else None


def output_strides(output: fx.Node) -> list[Shape | None]:
    """The strides of what a graph returns; None for what is no tensor."""
    return [_strides_of(node) for node in output.args[0]]  # type: ignore[union-attr]


def restore_outputs(graph: fx.Graph, output: fx.Node, wanted: list[Shape | None], mode: FakeTensorMode) -> None:
    """Outputs have eager's strides although layouts changed inside."""
    results = list(output.args[0])  # type: ignore[arg-type]
    for k, (node, strides) in enumerate(zip(results, wanted, strict=True)):
        if isinstance(node, fx.Node) and strides is not None and _strides_of(node) != strides:
            order = slowest_first(range(len(strides)), strides)
            inverse = [order.index(d) for d in range(len(strides))]
            with graph.inserting_before(output):
                turned = insert_call(graph, mode, node, aten.permute.default, node, order)
                dense = insert_call(graph, mode, node, _contiguous, turned)
                dense.target, dense.kwargs = aten.clone.default, {"memory_format": torch.contiguous_format}
                results[k] = insert_call(graph, mode, node, aten.permute.default, dense, inverse)
    output.args = (tuple(results),)


def _contiguous(x: torch.Tensor) -> torch.Tensor:
    return aten.clone.default(x, memory_format=torch.contiguous_format)
