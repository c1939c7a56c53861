"""Append nodes to a graph at the cost of the nodes themselves.

`fx.Graph.create_node` of torch 2.13 walks all arguments in search of symbolic numbers, which costs as much as the rest of it. What is
written here holds nodes in their place. `fx.Node.__setattr__` takes a node out of the graph's table of targets and puts it back, whatever
the attribute; neither arguments nor `meta` matter to that table.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from torch import fx


def append_call(graph: fx.Graph, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
    """Append a call of `target`. Arguments are nodes and constants, nested in lists, tuples and dicts."""
    node = graph.create_node("call_function", target, name=_name_of(target))
    _set(node, "args", args)
    if kwargs:
        _set(node, "kwargs", kwargs)
    return node


def copy_node(graph: fx.Graph, node: fx.Node, copy_of: Callable[[fx.Node], Any]) -> fx.Node:
    """Append a copy of a node of another graph, its arguments replaced by `copy_of` them."""
    made = graph.create_node(node.op, node.target, name=node.name, type_expr=node.type)
    _set(made, "args", fx.map_arg(node.args, copy_of))
    if node.kwargs:
        _set(made, "kwargs", fx.map_arg(node.kwargs, copy_of))
    made.meta.update(node.meta)
    return made


_set = object.__setattr__


@functools.lru_cache(maxsize=1024)
def _name_of(target: Callable[..., Any]) -> str:
    """The name that `fx.Graph` gives to the first call of `target`, in characters that need not be replaced for each node."""
    return re.sub(r"[^0-9a-zA-Z_]+", "_", fx.Graph()._target_to_str(target))
