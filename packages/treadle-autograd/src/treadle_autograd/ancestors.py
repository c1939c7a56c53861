"""What nodes of a graph are computed from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from torch import fx

InputsOf = Callable[[fx.Node], Sequence[fx.Node]]

ARGUMENTS: InputsOf = attrgetter("all_input_nodes")


def ancestors(
    nodes: Iterable[fx.Node], stop: frozenset[fx.Node] = frozenset(), inputs_of: InputsOf = ARGUMENTS
) -> set[fx.Node]:
    """`nodes` and everything they are computed from, nothing beyond `stop`. inputs_of: what computing a node takes."""
    found: set[fx.Node] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node in found:
            continue
        found.add(node)
        if node not in stop:
            pending += inputs_of(node)
    return found
