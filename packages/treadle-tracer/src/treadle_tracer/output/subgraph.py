"""Take the calls of a body (backward's, or that of a transformed function) out of a graph under construction; make a graph module of them.

%g = placeholder (a stand-in);  %m = mul(%g, %x)       ==>     graph of its own: (g, x) -> mul(g, x)
                                                               what stays behind does not know of %g and %m
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from treadle_shapes.torch import HooklessGraphModule, env_of, operator, raw_expr

from ..values.call_effects import storages, written_arguments

_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def moved_nodes(before: fx.Node) -> list[fx.Node]:
    """The calls and stand-ins behind `before`, in order, without those that compute numbers from what stands earlier: others may use
    these, too."""
    moved: dict[fx.Node, None] = {}
    node = before.next
    while node.op != "root":
        is_number = isinstance(node.meta.get("example_value"), _NUMBERS)
        is_input = node.op == "get_attr" or (node.op == "placeholder" and "stand_in" not in node.meta)
        if not is_input and (not is_number or any(used in moved for used in node.all_input_nodes)):
            moved[node] = None
        node = node.next
    return list(moved)


def outside_nodes(moved: Sequence[fx.Node], results: Sequence[fx.Node | None]) -> list[fx.Node]:
    """The nodes that `moved` reads, or that are results, and that are not among them, in the order of first use."""
    members = set(moved)
    read = [used for node in moved for used in node.all_input_nodes] + [node for node in results if node is not None]
    return list(dict.fromkeys(node for node in read if node not in members))


def why_not_take_out(before: fx.Node, results: Sequence[fx.Node | None]) -> str | None:
    """Why the calls behind `before`, a backward body, cannot run later, when gradients are asked for."""
    moved = moved_nodes(before)
    outside = outside_nodes(moved, results)
    given = [*outside, *[node for node in moved if node.op == "placeholder"]]
    shared = {storage for node in given for storage in storages(node.meta.get("example_value"))}
    for node in moved:
        if node.op == "placeholder":
            continue
        record = operator(node.target)
        if record is not None and record.is_random:
            return f"its backward draws random numbers ({node.name})"
        if _found_symbols(node):
            return f"its backward depends on values of tensors ({node.name})"
        for written in _changed(node):
            if storages(written.meta.get("example_value")) & shared:
                return f"its backward changes {written.name} in place"
    return None


def why_not_move(before: fx.Node) -> str | None:
    """Why the calls behind `before` cannot be the body of a function that the graph calls."""
    moved = moved_nodes(before)
    given = [*outside_nodes(moved, ()), *[node for node in moved if node.op == "placeholder"]]
    shared = {storage for node in given for storage in storages(node.meta.get("example_value"))}
    known = {symbol for node in given for symbol in _found_symbols(node)}
    for node in moved:
        if not known.issuperset(_found_symbols(node)):
            return f"depends on values of tensors ({node.name})"
        for written in [] if node.op == "placeholder" else _changed(node):
            if storages(written.meta.get("example_value")) & shared:
                return f"changes {written.name} in place"
    return None


def _changed(node: fx.Node) -> list[fx.Node]:
    """The arguments whose elements a call may change."""
    return [] if node.target == "requires_grad_" else written_arguments(node)


def _numbers_in(value: Any) -> Iterator[Any]:
    if isinstance(value, _NUMBERS):
        yield value
    elif isinstance(value, torch.Tensor):
        yield from (size for size in value.shape if isinstance(size, _NUMBERS))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _numbers_in(item)


def _found_symbols(node: fx.Node) -> set[Any]:
    """The symbols of values of tensors that the numbers of a node are made of."""
    found = set()
    for number in _numbers_in(node.meta.get("example_value")):
        env = env_of(number)
        if env is not None:
            found |= {symbol for symbol in raw_expr(number).free_symbols if env.is_unbacked(symbol)}
    return found


def take_out(
    erase: Callable[[fx.Node], None],
    before: fx.Node,
    given: Sequence[fx.Node | None],
    results: Sequence[fx.Node | None],
) -> tuple[fx.GraphModule, list[fx.Node], set[fx.Node]]:
    """Remove the nodes behind `before` from their graph, calls by `erase`, and make a graph module of them: (*given, *others) -> results.

    given: stand-ins and other nodes; None, or a node that stands there for the second time, is an argument that nobody reads. Returns the
    graph module, the others (nodes that stay, and that it reads besides), and what has been removed.
    """
    moved = moved_nodes(before)
    others = [node for node in outside_nodes(moved, results) if node not in given]
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for number, node in enumerate([*given, *others]):
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
            erase(node)
    return HooklessGraphModule(torch.nn.Module(), graph, class_name="Body"), others, set(moved)
