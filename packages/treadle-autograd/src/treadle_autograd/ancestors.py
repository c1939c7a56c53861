"""What nodes of a graph are computed from."""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx


def ancestors(nodes: Iterable[fx.Node], stop: frozenset[fx.Node] = frozenset()) -> set[fx.Node]:
    """`nodes` and everything they are computed from, nothing beyond `stop`."""
    found: set[fx.Node] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node in found:
            continue
        found.add(node)
        if node not in stop:
            pending += node.all_input_nodes
    return found
