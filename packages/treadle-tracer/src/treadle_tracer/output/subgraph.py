"""Take the calls of a backward body out of a graph under construction and make a graph module of them.

%g = placeholder (a stand-in);  %m = mul(%g, %x)       ==>     graph of its own: (g, x) -> mul(g, x)
                                                               what stays behind does not know of %g and %m
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule

from treadle_shapes.torch import env_of, operator, raw_expr

from .graph_writes import storages, written_arguments

if TYPE_CHECKING:
    from .graph import GraphBuilder

_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def moved_nodes(builder: GraphBuilder, before: fx.Node) -> list[fx.Node]:
    """The nodes behind `before`, in order, without those that compute numbers from what stands earlier: others may use these, too."""
    moved: dict[fx.Node, None] = {}
    node = before.next
    while node.op != "root":
        is_number = isinstance(node.meta.get("example_value"), _NUMBERS)
        if not is_number or any(used in moved for used in node.all_input_nodes):
            moved[node] = None
        node = node.next
    return list(moved)


def outside_nodes(moved: Sequence[fx.Node], results: Sequence[fx.Node | None]) -> list[fx.Node]:
    """The nodes that `moved` reads, or that are results, and that are not among them, in the order of first use."""
    members = set(moved)
    read = [used for node in moved for used in node.all_input_nodes] + [node for node in results if node is not None]
    return list(dict.fromkeys(node for node in read if node not in members))


def why_not_take_out(moved: Sequence[fx.Node], outside: Sequence[fx.Node]) -> str | None:
    """Why the calls in `moved`, a backward body, cannot run later, when gradients are asked for."""
    given = [*outside, *[node for node in moved if node.op == "placeholder"]]
    shared = {storage for node in given for storage in storages(node.meta.get("example_value"))}
    for node in moved:
        if node.op == "placeholder":
            continue
        record = operator(getattr(torch.Tensor, str(node.target), None) if node.op == "call_method" else node.target)
        if record is not None and record.is_random:
            return f"its backward draws random numbers ({node.name})"
        if any(map(_is_unbacked, _numbers_in(node.meta.get("example_value")))):
            return f"its backward depends on values of tensors ({node.name})"
        for written in written_arguments(node):
            if storages(written.meta.get("example_value")) & shared:
                return f"its backward changes {written.name} in place"
    return None


def _numbers_in(value: Any) -> Iterator[Any]:
    if isinstance(value, _NUMBERS):
        yield value
    elif isinstance(value, torch.Tensor):
        yield from (size for size in value.shape if isinstance(size, _NUMBERS))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _numbers_in(item)


def _is_unbacked(number: Any) -> bool:
    env = env_of(number)
    return env is not None and bool(env.is_unbacked(raw_expr(number)))


def take_out(
    builder: GraphBuilder, moved: Sequence[fx.Node], inputs: Sequence[fx.Node | None], results: Sequence[fx.Node | None]
) -> fx.GraphModule:
    """Remove `moved` from the builder's graph; return a graph module inputs -> results that runs them.

    inputs: the placeholders in order; None, or a node that stands there for the second time, is an argument that nobody reads.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for number, node in enumerate(inputs):
        if node is None or node in copies:
            graph.placeholder(f"unread_{number}")
            continue
        copies[node] = graph.placeholder(node.name)
        copies[node].meta["example_value"] = node.meta.get("example_value")
    for node in moved:
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].meta.pop("checkpoint", None)
    graph.output(tuple(None if node is None else copies[node] for node in results))
    for node in reversed(moved):
        if node.op == "placeholder":
            node.graph.erase_node(node)
        else:
            builder.erase(node)
    return LazyGraphModule(torch.nn.Module(), graph, class_name="BackwardBody")
