"""A mapping from code objects, by identity, that keeps none of them alive.

By identity, because equal code objects have entries of their own, and comparing them is slow. Weakly, because the entries of a code
object hold the graphs and parameters that were compiled for it, and Python's collector does not see code objects.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

V = TypeVar("V")


class CodeMap(Generic[V]):
    """`dict[CodeType, V]`, weak in its keys. A value must not hold its own key."""

    def __init__(self) -> None:
        self._items: dict[int, tuple[weakref.ref[types.CodeType], V]] = {}

    def get(self, code: types.CodeType) -> V | None:
        """The value of this very code object, or None."""
        found = self._items.get(id(code))
        return None if found is None or found[0]() is not code else found[1]

    def __setitem__(self, code: types.CodeType, value: V) -> None:
        key, items = id(code), self._items
        items[key] = (weakref.ref(code, lambda _: items.pop(key, None)), value)

    def __contains__(self, code: types.CodeType) -> bool:
        return self.get(code) is not None

    def values(self) -> Iterator[V]:
        """The values of the code objects that are alive."""
        return (value for _, value in list(self._items.values()))

    def __len__(self) -> int:
        return len(self._items)

    def clear(self) -> None:
        self._items.clear()
