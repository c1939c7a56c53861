"""Parts of the forward graph that backward computes again because their compiler asks for it, as it does with checkpointed parts.

A compiler that makes one kernel of attention keeps no scores in memory. It can do so where nothing but the attention reads them: backward
must not ask for scores and weights, which are by far the most of what a differentiated attention keeps.

    joint          s = bmm(q, k);  p = softmax(s);  y = bmm(p, v);    dv = bmm(p', dy);  dp = bmm(dy, v');  ds = softmax_backward(dp, p)
    part           s, p
    forward        s, p, y as above, and nobody else reads s and p                             saved: q, k, v
    backward       s, p once more, then as above
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import fx

from ..node_sizes import is_number, size_in_bytes
from .calls import Calls
from .classify import Classes, is_view, results_of_parts, viewed, why_never_recompute
from .mincut import saved_by_eager

# (joint graph, its nodes that are no part of forward) -> the parts, each of them all that is to be computed again.
FindParts: TypeAlias = Callable[[fx.Graph, Container[fx.Node]], Iterable[Collection[fx.Node]]]


def computing_again(classes: Classes, find: FindParts) -> Classes:
    """The classes of the same graph in which the parts that `find` finds are interior, as far as that changes nothing for the program."""
    forward = {node for node in classes.order if not node.meta.get("of_backward")}
    others = {node for node in classes.joint.graph.nodes if node not in forward}
    by_eager = saved_by_eager(classes)
    found = [_with_views(part, forward) for part in find(classes.joint.graph, others)]
    parts = [part for part in found if why_not_computed_again(part, classes, by_eager) is None]
    if not parts:
        return classes
    copies = _read_copies(parts, classes, by_eager)
    known = {*classes.order, *copies.values()}
    order = tuple(node for node in classes.joint.graph.nodes if node in known)
    interior = classes.interior.union(*parts)
    return replace(classes, order=order, interior=interior, results=results_of_parts(order, interior))


def _with_views(part: Collection[fx.Node], forward: Container[fx.Node]) -> frozenset[fx.Node]:
    """The part, and the views of what it computes."""
    found, waiting = set(part), [*part]
    while waiting:
        views = [user for user in waiting.pop().users if user in forward and user not in found and is_view(user)]
        found.update(views)
        waiting += views
    return frozenset(found)


def why_not_computed_again(part: Collection[fx.Node], classes: Classes, by_eager: frozenset[fx.Node]) -> str | None:
    """Why the part must be saved."""
    for node in part:
        if viewed(node) in classes.visible:
            return f"the program gets {node.name}"
        never = why_never_recompute(node)
        if never is not None:
            return f"{node.name}: {never}"
        if node.meta.get("may_raise"):
            return f"{node.name} may raise"
    copied = sum(map(size_in_bytes, _changeable(part, classes, by_eager)))
    if 2 * copied > max(map(size_in_bytes, part)):
        return "the program may change what it reads, and a copy of that takes about as much memory as the part"
    return None


def _changeable(part: Collection[fx.Node], classes: Classes, by_eager: frozenset[fx.Node]) -> list[fx.Node]:
    """What the part reads, the program may change in place, and eager does not save: if backward read it, autograd would find the change,
    and raise where eager does not."""
    read = {used: None for node in part for used in node.all_input_nodes if used not in part and not is_number(used)}
    return [used for used in read if viewed(used) in classes.visible and viewed(used) not in by_eager]


def _read_copies(
    parts: Iterable[Collection[fx.Node]], classes: Classes, by_eager: frozenset[fx.Node]
) -> Mapping[fx.Node, fx.Node]:
    """Let the parts read copies of what the program may change."""
    graph, calls = classes.joint.graph, Calls()
    copies: dict[fx.Node, fx.Node] = {}
    for part in parts:
        for used in _changeable(part, classes, by_eager):
            if used not in copies:
                behind = used.next
                while behind.op == "placeholder":
                    behind = behind.next
                with graph.inserting_before(behind):
                    copies[used] = calls.append(graph, behind, torch.ops.aten.clone.default, used)
            for node in part:
                node.replace_input_with(used, copies[used])
    return copies
