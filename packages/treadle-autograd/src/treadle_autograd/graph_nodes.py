"""Append nodes to a graph at the cost of the nodes themselves.

`fx.Graph.create_node` of torch 2.13 walks all arguments in search of symbolic numbers, which costs as much as the rest of it. What is
written here holds nodes in their place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx


def append_call(graph: fx.Graph, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
    """Append a call of `target`. Arguments are nodes and constants, nested in lists, tuples and dicts."""
    node = graph.create_node("call_function", target)
    node.args = args
    if kwargs:
        node.kwargs = kwargs
    return node


def copy_node(graph: fx.Graph, node: fx.Node, copy_of: Callable[[fx.Node], Any]) -> fx.Node:
    """Append a copy of a node of another graph, its arguments replaced by `copy_of` them."""
    made = graph.create_node(node.op, node.target, name=node.name, type_expr=node.type)
    made.args = fx.map_arg(node.args, copy_of)  # type: ignore[assignment]
    if node.kwargs:
        made.kwargs = fx.map_arg(node.kwargs, copy_of)  # type: ignore[assignment]
    made.meta = node.meta.copy()
    return made
