"""Results of a graph that have memory of their own: no other result and nothing outside shares it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..values.call_effects import storages, written_arguments

if TYPE_CHECKING:
    from torch import fx


def has_own_memory(node: fx.Node, outputs: Iterable[fx.Node]) -> bool:
    """Whether the call at `node` has made the memory of its result, and no other of these outputs of the graph shares it.

    Calls that have written to the result since count as the same call; a view does not have memory of its own.
    """
    memory = storages(node.meta.get("example_value"))
    if any(storages(other.meta.get("example_value")) & memory for other in outputs if other is not node):
        return False
    while True:
        given = [argument for argument in node.all_input_nodes if storages(argument.meta.get("example_value")) & memory]
        if not given:
            return node.op not in ("placeholder", "get_attr")
        if given[0] not in written_arguments(node):
            return False
        node = given[0]


__all__ = ["has_own_memory"]
