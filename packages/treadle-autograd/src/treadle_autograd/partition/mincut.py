"""Choose what is saved between forward and backward: the cheapest cut of the joint graph.

Every forward value is an edge whose capacity is the bytes that saving it costs; a cut separates the inputs, and what must not be computed
again, from what backward reads. The values on the cut are saved, everything behind it is recomputed (the formulation of min-cut
rematerialisation in PyTorch 2, Ansel et al., ASPLOS 2024, section 4.2).

    x -> mm -> gelu -> backward of gelu            saved: mm (gelu's backward reads its argument), x
         saving mm costs its bytes; gelu is recomputed from mm for nothing
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import fx

from ..ancestors import ancestors
from ..node_sizes import is_number, size_in_bytes
from .classify import Classes, is_view, viewed, why_not_recompute
from .cost import recompute_cost
from .network import INFINITE, SINK, SOURCE, source_side

Partition: TypeAlias = Callable[[Classes], Sequence[fx.Node]]

_LARGEST_TOTAL = 2**30
# What one core writes and reads back.
_BYTES_PER_NANOSECOND = 4


def save_everything(classes: Classes) -> list[fx.Node]:
    """Save every forward tensor that backward reads, as eager does; views are taken anew from what they view. Checkpoints are ignored."""
    keep = {viewed(node) for node in classes.needed if not is_number(node)}
    return [node for node in classes.order if node in keep]


def why_not_save(node: fx.Node, classes: Classes, saved_by_eager: frozenset[fx.Node]) -> str | None:
    """Why the node must not be saved.

    The program can change inputs and outputs in place after the forward pass. Autograd then refuses the backward pass if it has saved them,
    so only those may be saved that eager saves, too.
    """
    if not isinstance(node.meta.get("val"), torch.Tensor):
        return "no tensor: its items are saved"
    if node in classes.interior:
        return "inside a checkpointed part"
    if viewed(node) in classes.visible and viewed(node) not in saved_by_eager:
        return "the program may change it in place"
    return None


def saved_by_eager(classes: Classes) -> frozenset[fx.Node]:
    """What eager saves, as what it views: what formulas of backward read, whether they depend on a tangent or not, and what a checkpointed
    part of the program starts from."""
    found = set(map(viewed, classes.needed))
    for node in classes.order:
        if node.meta.get("of_backward"):
            found.update(map(viewed, node.all_input_nodes))
    for node in classes.interior:
        found.update(viewed(used) for used in node.all_input_nodes if used not in classes.interior)
    return frozenset(found)


def min_cut(classes: Classes) -> list[fx.Node]:
    """The nodes to save for the smallest cut, in graph order. Numbers are never among them: they are read from what is."""
    below = ancestors(classes.needed, inputs_of=classes.inputs_of)
    relevant = [node for node in classes.order if node in below and not is_number(node)]
    if not relevant:
        return []
    reachable = _cut(relevant, classes)
    saved = [node for node in relevant if (node, "in") in reachable and (node, "out") not in reachable]
    return _without_views_of_saved(saved)


min_cut.kept_as = "smallest cut"  # type: ignore[attr-defined]


def _without_views_of_saved(saved: list[fx.Node]) -> list[fx.Node]:
    """Views of something that is saved, or of an input, cost nothing to take again and are not saved beside it."""
    roots = {node for node in saved if not is_view(node)}
    keep = dict.fromkeys(node if viewed(node) not in roots else viewed(node) for node in saved)
    return list(keep)


def _cut(relevant: Sequence[fx.Node], classes: Classes) -> set[tuple[fx.Node, str]]:
    """The (node, end) pairs on the side of the inputs after the smallest cut."""
    number = {node: 2 + 2 * k for k, node in enumerate(relevant)}  # `in` at this index, `out` behind it
    edges: dict[tuple[int, int], int] = {}
    by_eager = saved_by_eager(classes)
    scale = 1 + sum(map(size_in_bytes, relevant)) // _LARGEST_TOTAL
    for node in relevant:
        at = number[node]
        why_not = why_not_save(node, classes, by_eager)
        edges[at, at + 1] = capacity(node, classes, scale) if why_not is None else INFINITE
        price = price_of_computing_again(node, classes, scale)
        if price:
            edges[SOURCE, at] = price
        if node in classes.needed:
            edges[at + 1, SINK] = INFINITE
        for used in classes.inputs_of(node):
            if used in number:
                edges[number[used] + 1, at] = INFINITE
    size = 2 + 2 * len(relevant)
    seen = source_side(size, edges)
    return {
        (node, end)
        for node in relevant
        for end, place in (("in", number[node]), ("out", number[node] + 1))
        if place in seen
    }


def price_of_computing_again(node: fx.Node, classes: Classes, scale: int) -> int:
    """What computing the node again costs, in half bytes over `scale`: infinitely much, or nothing, or the bytes that memory moves while
    random numbers are drawn again.

    On CPUs that takes 4 to 8 ns for each number, 16 times the time in which a mask of a byte each is written and read. So they are drawn
    again where a checkpoint or a memory budget asks for it, and where much larger values are computed from few of them.
    """
    if node in classes.results or node in classes.known:
        return INFINITE
    if node in classes.interior or why_not_recompute(node) is None:
        return 0
    if node not in classes.joint.states:
        return INFINITE
    return min(int(2 * _BYTES_PER_NANOSECOND * recompute_cost(node)) // scale, _LARGEST_TOTAL)


def capacity(node: fx.Node, classes: Classes, scale: int) -> int:
    """What saving the node costs, in half bytes over `scale`."""
    # What is given is alive anyway. One more for a view: what it views is the better choice at equal bytes.
    cost = 0 if node.op == "placeholder" or node in classes.known else 2 * size_in_bytes(node) // scale
    return 2 + cost + int(is_view(node))
