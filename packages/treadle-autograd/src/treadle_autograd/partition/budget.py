"""Save less than the smallest cut does, and compute more again: what a memory budget asks for.

The smallest cut saves what would be expensive to compute again. A budget of b keeps at most b times its bytes. Which ones is a knapsack
problem: every saved value weighs its bytes, and is worth what computing it again would cost from the values that the cut saves before it.

    cut: a (4 MB, 9 ms), b (8 MB, 3 ms), c (2 MB, 6 ms)        budget 0.5: at most 7 MB, so a and c; b is computed again
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx

from ..ancestors import ancestors
from ..node_sizes import is_number, size_in_bytes
from .classify import Classes, why_never_recompute
from .cost import recompute_cost
from .mincut import Partition, min_cut


@dataclass(frozen=True)
class Segment:
    """Values of the smallest cut that one call computes, and the cost of computing them again. Nothing else can be dropped.

    bytes: what dropping them saves, which is less than they take where states of a random generator are saved in their place.
    """

    nodes: tuple[fx.Node, ...]
    bytes: int
    cost: float


def with_budget(memory_budget: float) -> Partition:
    """The partition that saves at most `memory_budget` times the bytes that `min_cut` saves, at the least cost of recomputing.

    1 is `min_cut`; 0 saves inputs, and what cannot be computed again, only. Below 1, inputs are saved
    that eager does not save, such as biases: where the program changes one in place between forward and backward, backward raises
    eager's error for changed tensors. Raises ValueError for a budget outside [0, 1].
    """
    if not 0 <= memory_budget <= 1:
        raise ValueError(f"memory_budget must be a number from 0 to 1, got {memory_budget!r}")
    if memory_budget == 1:
        return min_cut

    def partition(classes: Classes) -> list[fx.Node]:
        return save_within(classes, memory_budget)

    partition.kept_as = f"budget {memory_budget!r}"  # type: ignore[attr-defined]
    return partition


def save_within(classes: Classes, memory_budget: float) -> list[fx.Node]:
    """The nodes to save, in graph order."""
    cut = min_cut(classes)
    found = segments(classes, cut)
    capacity = int(memory_budget * sum(size_in_bytes(node) for node in cut if node.op != "placeholder"))
    fixed = sum(size_in_bytes(node) for node in cut if node.op != "placeholder") - sum(s.bytes for s in found)
    kept = knapsack([s.bytes for s in found], [s.cost for s in found], max(capacity - fixed, 0))
    dropped = {node for k, segment in enumerate(found) if k not in kept for node in segment.nodes}
    saved = {node for node in cut if node not in dropped}
    return with_sources(classes, saved)


def with_sources(classes: Classes, saved: set[fx.Node]) -> list[fx.Node]:
    """`saved`, and the inputs and states that computing everything else again starts from, in graph order."""
    needed = ancestors(classes.needed, frozenset(saved), classes.inputs_of)
    states = classes.states
    given = states | classes.known
    sources = {node for node in needed if node in given or (node.op == "placeholder" and not is_number(node))}
    return [node for node in classes.order if node in saved or node in sources]


def segments(classes: Classes, cut: Sequence[fx.Node]) -> list[Segment]:
    """The values of the cut that can be computed again from the rest of the cut and the inputs."""
    groups: dict[fx.Node, list[fx.Node]] = {}
    for node in cut:
        if node.op != "placeholder" and node not in classes.known:
            call = node.all_input_nodes[0] if node.target is operator.getitem else node
            groups.setdefault(call, []).append(node)
    found = []
    for call, nodes in groups.items():
        others = frozenset(node for node in cut if node not in nodes)
        computed = ancestors([call], others, classes.inputs_of) - others
        states = computed & classes.states
        if all(node.op == "placeholder" or why_never_recompute(node) is None for node in computed - states):
            cost = sum(recompute_cost(node) for node in computed)
            freed = sum(map(size_in_bytes, nodes)) - sum(map(size_in_bytes, states))
            if freed > 0:
                found.append(Segment(tuple(nodes), freed, cost))
    return found


def knapsack(weights: Sequence[int], values: Sequence[float], capacity: int) -> frozenset[int]:
    """The positions of the most valuable items that weigh `capacity` at most; of equal ones the lightest, so more capacity never means less
    weight.

    Exact, by the list of undominated selections of the first items (Nemhauser and Ullmann 1969). Identical items, of which the layers of a
    model have many, keep the list short. Where it grows beyond a few thousand all the same, it is thinned: then the result weighs
    `capacity` at most and is close to the best.
    """
    # Selections as (weight, value, (item, rest) or None), by weight; values rise along the list.
    best: list[tuple[int, float, tuple[int, object] | None]] = [(0, 0.0, None)]
    order = sorted(range(len(weights)), key=lambda k: (-values[k] / max(weights[k], 1), k))
    for k in order:
        grown = [
            (weight + weights[k], value + values[k], (k, chosen))
            for weight, value, chosen in best
            if weight + weights[k] <= capacity
        ]
        merged = sorted([*best, *grown], key=lambda s: (s[0], -s[1]))
        best = []
        for selection in merged:
            if not best or selection[1] > best[-1][1] * (1 + 1e-12):
                best.append(selection)
        if len(best) > _LONGEST:
            step = len(best) / _LONGEST
            best = [best[int(k * step)] for k in range(_LONGEST - 1)] + [best[-1]]
    chosen: object = best[-1][2]
    items = set()
    while isinstance(chosen, tuple):
        items.add(chosen[0])
        chosen = chosen[1]
    return frozenset(items)


_LONGEST = 4000

__all__ = ["Segment", "knapsack", "save_within", "segments", "with_budget"]
