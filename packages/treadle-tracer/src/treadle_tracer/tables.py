"""Tables in which an entry given twice is an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from treadle_tracer.errors import InternalError

K = TypeVar("K")
T = TypeVar("T")


def by_name(*entries: tuple[str, T]) -> dict[str, T]:
    """`("a b", x), ("c", y)` gives `{"a": x, "b": x, "c": y}`. Raises InternalError for a name given twice."""
    return disjoint(*({name: entry} for names, entry in entries for name in names.split()))


def disjoint(*parts: Mapping[K, T]) -> dict[K, T]:
    """All parts as one table. Raises InternalError for a key that two parts have."""
    table: dict[K, T] = {}
    for part in parts:
        for key, entry in part.items():
            other = table.setdefault(key, entry)
            if other is not entry:
                raise InternalError("tables", f"{key!r} stands for {other!r} and for {entry!r}")
    return table
