"""The tensor whose memory an output is a part of, where the output does not tell: what is detached knows no base.

y = x * 2
return y[:, -1].detach()      ==>      y, whose memory the graph returns, and the output is a view of it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from .recorder import storage_key


def wholes_of(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """For those outputs of the traced graph that are no views to autograd: the call that made their memory, if it is another one."""
    results: Any = graph.output_node().args[0]
    items = results if isinstance(results, (list, tuple)) else (results,)
    wanted: dict[fx.Node, int] = {}
    for node in items:
        tensor = _tensor_of(node) if isinstance(node, fx.Node) else None
        if tensor is not None and tensor._base is None:
            wanted[node] = storage_key(tensor)
    if not wanted:
        return {}
    keys = set(wanted.values())
    makers: dict[int, fx.Node] = {}
    for node in graph.nodes:
        tensor = _tensor_of(node)
        if tensor is not None and (key := storage_key(tensor)) in keys:
            makers.setdefault(key, node)
    makes = {node: makers[key] for node, key in wanted.items()}
    return {node: maker for node, maker in makes.items() if maker is not node and maker.op.startswith("call_")}


def in_order(
    graph: fx.Graph, wholes: Mapping[fx.Node, fx.Node], values: Mapping[fx.Node, Any], outputs: Sequence[Any]
) -> Sequence[Any]:
    """For each of `outputs`, the values of the graph's outputs, that of its whole, or None."""
    results: Any = graph.output_node().args[0]
    if not wholes:  # the output may also be one call that has several results
        return [None] * len(outputs)
    items = results if isinstance(results, (list, tuple)) else (results,)
    return [values.get(wholes[node]) if isinstance(node, fx.Node) and node in wholes else None for node in items]


def _tensor_of(node: fx.Node) -> torch.Tensor | None:
    """The tensor that the tracer has found for a node, if it has memory."""
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return None if torch._C._functorch.is_functorch_wrapped_tensor(value) else value
