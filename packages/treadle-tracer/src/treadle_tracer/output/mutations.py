"""Writes of the traced program to outside objects: the trace records them and reads them back, the replacement replays them.

The record is an overlay; outside objects stay untouched while tracing. Stores to attributes, cells and globals keep the last value per
place. A changed container (list, dict, set, ...) has its contents in its own Value; the overlay records only that it changed. Output is
a sequence of calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..errors import PathEnds

if TYPE_CHECKING:
    from ..source import Source
    from ..values.value import Value


class _Deleted:
    """Marks a place whose value the trace has deleted."""

    def __repr__(self) -> str:
        return "DELETED"


DELETED = _Deleted()
Stored = Any  # Value | DELETED
Output = tuple[Callable[..., Any], tuple["Value", ...]]


class Mutations:
    """The overlay of one trace. Objects and cells are identified by their Value, which the trace makes once per object."""

    def __init__(self) -> None:
        self._attrs: dict[int, dict[str, Stored]] = {}
        self._containers: dict[int, Value] = {}
        self._globals: dict[tuple[Source | None, str], Stored] = {}
        self._cells: dict[int, Stored] = {}
        self._outputs: tuple[Output, ...] = ()
        self._values: dict[int, Value] = {}  # keeps the keys' Values alive
        self.made: dict[int, tuple[Any, Value | None]] = {}
        """Objects that stand for what the trace has made, by id, with their Values: see `values.shadows`."""
        self.writes_outside = 0
        """How many writes to objects that exist outside the trace, and how much output, there have been."""
        self.frozen = False  # a path is traced speculatively: see trace.speculation

    def store_attr(self, obj: Value, name: str, value: Value) -> None:
        """`obj.name = value` as `object.__setattr__` does it; the caller handles descriptors and `__setattr__`."""
        self._check()
        self.writes_outside += obj.source is not None
        attrs = self._attrs.setdefault(self._key(obj), {})
        if attrs.get(name) is DELETED:
            del attrs[name]  # a name stored again after a deletion stands at the end, as in a real __dict__
        attrs[name] = value

    def delete_attr(self, obj: Value, name: str) -> None:
        """`del obj.name`; an object made in the trace simply loses the name."""
        self._check()
        attrs = self._attrs.setdefault(self._key(obj), {})
        attrs.pop(name, None)
        attrs[name] = DELETED

    def forget_attr(self, obj: Value, name: str) -> None:
        """The attribute holds again what it held before the trace: nothing to replay."""
        attrs = self._attrs[id(obj)]
        del attrs[name]
        if not attrs:
            del self._attrs[id(obj)]

    def load_attr(self, obj: Value, name: str) -> Stored | None:
        """What the trace last stored there, DELETED, or None when the trace has not written that attribute."""
        attrs = self._attrs.get(id(obj))
        return None if attrs is None else attrs.get(name)

    def attrs_of(self, obj: Value) -> dict[str, Stored]:
        """Everything the trace stored on `obj`, in order, deletions included."""
        return dict(self._attrs.get(id(obj), ()))

    def mutated(self, container: Value) -> None:
        """An outside container has other contents than it holds now; `container.reconstruct` gives them at the end."""
        self._check()
        self.writes_outside += 1
        self._containers.setdefault(self._key(container), container)

    def is_mutated(self, container: Value) -> bool:
        """Whether `mutated` was called for it."""
        return id(container) in self._containers

    def store_global(self, globals_source: Source | None, name: str, value: Stored) -> None:
        """`global name; name = value` in the module whose dict is at `globals_source` (None: the root frame's globals)."""
        self._check()
        self.writes_outside += 1
        self._globals[globals_source, name] = value

    def load_global(self, globals_source: Source | None, name: str) -> Stored | None:
        """What the trace last stored there, DELETED, or None."""
        return self._globals.get((globals_source, name))

    def store_cell(self, cell: Value, value: Stored) -> None:
        """Store into a cell that exists outside the trace or may outlive it."""
        self._check()
        self.writes_outside += cell.source is not None
        self._cells[self._key(cell)] = value

    def load_cell(self, cell: Value) -> Stored | None:
        """What the trace last stored there, DELETED (an emptied cell), or None."""
        return self._cells.get(id(cell))

    def output(self, function: Callable[..., Any], values: tuple[Value, ...]) -> None:
        """Print, warn or log by calling `function(*values)`."""
        self._check()
        self.writes_outside += 1
        self._outputs = (*self._outputs, (function, values))

    @property
    def outputs(self) -> tuple[Output, ...]:
        """What the program has printed, warned and logged, in order."""
        return self._outputs

    def begin_write(self) -> None:
        """Before a write that is recorded elsewhere: raises PathEnds on a path that is only tried."""
        self._check()

    @contextlib.contextmanager
    def freezing(self) -> Iterator[None]:
        """Inside, a write raises PathEnds."""
        before, self.frozen = self.frozen, True
        try:
            yield
        finally:
            self.frozen = before

    def _check(self) -> None:
        if self.frozen:
            raise PathEnds("a write")

    def _key(self, value: Value) -> int:
        self._values[id(value)] = value
        return id(value)

    def owner(self, key: int) -> Value:
        """The Value under a key of a snapshot's attributes."""
        return self._values[key]

    def __bool__(self) -> bool:
        return bool(self._attrs or self._containers or self._globals or self._cells or self._outputs)

    # ---- what output.replacement reads

    def attr_stores(self) -> Iterator[tuple[Value, str, Stored]]:
        """(object, name, Value | DELETED) of every attribute store, grouped by object in the order of first store."""
        for key, attrs in self._attrs.items():
            for name, value in attrs.items():
                yield self._values[key], name, value

    def containers(self) -> tuple[Value, ...]:
        """Changed containers in the order of their first change."""
        return tuple(self._containers.values())

    def global_stores(self) -> Iterator[tuple[Source | None, str, Stored]]:
        """(source of the globals dict or None, name, Value | DELETED)."""
        for (source, name), value in self._globals.items():
            yield source, name, value

    def cell_stores(self) -> Iterator[tuple[Value, Stored]]:
        """(cell, Value | DELETED)."""
        for key, value in self._cells.items():
            yield self._values[key], value

    # ---- states to compare with and to go back to

    nothing: Any = ({}, {}, {}, {}, ())
    """The state in which nothing has been written."""

    def snapshot(self) -> Any:
        """The state for `restore` when a speculative part of the trace is abandoned. The caller restores contents of containers."""
        return (
            {k: dict(v) for k, v in self._attrs.items()},
            dict(self._containers),
            dict(self._globals),
            dict(self._cells),
            self._outputs,
        )

    def restore(self, state: Any) -> None:
        """Go back to a snapshot."""
        attrs, containers, globals_, cells, self._outputs = state
        self._attrs = {k: dict(v) for k, v in attrs.items()}
        self._containers, self._globals, self._cells = dict(containers), dict(globals_), dict(cells)
