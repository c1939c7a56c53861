"""Graphs that write to outside tensors, apart from graphs whose exceptions the traced program may catch.

    try:
        y = x.exp()      # graph 1: Python can run the function again if it raises
        buffer.add_(y)   # carried out by Python: the break
        z = y * 2        # graph 2
    except RuntimeError: ...

An exception under a handler needs a deoptimisation, and a graph that has written cannot be run again. So the trace breaks at the first call
after which the graph would hold both a write and a call under a handler. Every prefix of the frame up to there holds at most one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import Unsupported
from ..values.call_effects import storages, writes_to

if TYPE_CHECKING:
    from torch import fx


class WriteSeparation:
    """Sees every node of a graph under construction. `is_protected`: whether the program may catch what the present call raises."""

    def __init__(self, is_protected: Callable[[], bool]):
        self._is_protected = is_protected
        self._outside: set[int] = set()
        self._writes = self._protected = False

    def note_input(self, node: fx.Node) -> None:
        """`node` is a placeholder or attribute."""
        self._outside |= storages(node.meta.get("example_value"))

    def note_call(self, node: fx.Node) -> None:
        """Raises Unsupported (write-under-handler) if the graph with `node` could neither be undone nor raise past the program."""
        self._protected = self._protected or self._is_protected()
        self._writes = self._writes or writes_to(node, self._outside)
        if self._writes and self._protected:
            raise Unsupported("write-under-handler", getattr(node.target, "__name__", str(node.target)))


__all__ = ["WriteSeparation"]
