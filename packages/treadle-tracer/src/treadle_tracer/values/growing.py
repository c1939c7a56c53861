"""Outside lists and tuples that the trace has not read, so that their length is not guarded.

    for layer in layers:
        x = layer(x)
        print(x)                # a graph break
        states += (x,)          # another length at every turn, and the same compiled code
        out.append(x)

Items that the trace appends are kept apart from those that are there at entry. Reading anything guards the length and gives ordinary items.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from treadle_tracer.source import ListItemSource, TupleItemSource
from treadle_tracer.values.base import Constant, LazyValue
from treadle_tracer.values.sequences import ListValue, TupleValue, symbolic_length
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.values.class_lookup import Guards
    from treadle_tracer.values.value import TraceContext


class OutsideList(ListValue):
    """A real list. `appended` holds what the trace has appended while it has read nothing."""

    __slots__ = ("_guards", "_items", "appended")

    def __init__(self, guards: Guards, obj: list[Any], source: Source):
        self._guards = guards
        self._items: list[Any] | None = None
        self.appended: list[Value] = []
        super().__init__(None, list, source, obj)  # type: ignore[arg-type]

    @property
    def is_unread(self) -> bool:
        """Whether the length at entry is not guarded."""
        return self._items is None

    @property
    def items(self) -> list[Any]:  # type: ignore[override]
        """All items; guards the length."""
        if self._items is None:
            assert self.source is not None
            self._guards.add(self.source, "len", len(self.obj))
            before = [LazyValue(item, ListItemSource(self.source, i)) for i, item in enumerate(self.obj)]
            self._items = [*before, *self.appended]
        return self._items

    @items.setter
    def items(self, items: list[Any] | None) -> None:
        self._items = items

    def truth(self, tx: TraceContext) -> bool:
        """Whether there are items, which is all that is guarded."""
        if not self.is_unread or self.source is None:
            return super().truth(tx)
        if self.appended:
            return True
        has_items = len(self.obj) > 0
        tx.guards.add(self.source, "call", _HAS_ITEMS[has_items], f"bool({self.source.text}) is {has_items}")
        return has_items

    def length_value(self, tx: TraceContext) -> Value:
        number = symbolic_length(tx, self.source, len(self.obj)) if self.is_unread else None
        if number is None:
            return super().length_value(tx)
        return tx.binary_op("+", number, Constant(len(self.appended))) if self.appended else number

    def item(self, tx: TraceContext, index: int) -> Value:
        """An item; of those that the trace has appended without guarding how many stand before them, counted from the end."""
        if self.is_unread and -len(self.appended) <= index < 0:
            return self.appended[index]
        return super().item(tx, index)

    def append(self, item: Value) -> None:
        (self.appended if self._items is None else self._items).append(item)

    def reconstruct_contents(self, cg: Any) -> None:
        """Push a list of all items, or of the appended ones if the others were not read."""
        items = self.appended if self._items is None else self._items
        for item in items:
            cg.value(item)
        cg.cb.build_list(len(items))


_HAS_ITEMS: dict[bool, Any] = {True: list.__len__, False: lambda value: list.__len__(value) == 0}


class OutsideTuple(TupleValue):
    """A real plain tuple."""

    __slots__ = ("_guards", "_items")

    def __init__(self, guards: Guards, obj: tuple[Any, ...], source: Source):
        self._guards = guards
        self._items: tuple[Any, ...] | None = None
        self.source = source
        self.cls = tuple
        self.obj = obj

    @property
    def is_unread(self) -> bool:
        """Whether the length is not guarded."""
        return self._items is None

    @property
    def items(self) -> tuple[Any, ...]:  # type: ignore[override]
        """All items; guards the length."""
        if self._items is None:
            assert self.source is not None
            self._guards.add(self.source, "len", len(self.obj))
            self._items = tuple([LazyValue(item, TupleItemSource(self.source, i)) for i, item in enumerate(self.obj)])
        return self._items

    def grown(self, items: tuple[Value, ...]) -> GrownTuple:
        """This tuple and further items."""
        return GrownTuple(self, items)


class GrownTuple(TupleValue):
    """`before + (…)` of a tuple that is not read."""

    __slots__ = ("added", "before")

    def __init__(self, before: OutsideTuple, added: tuple[Value, ...]):
        self.source = None
        self.cls = tuple
        self.obj = None
        self.before = before
        self.added = added

    @property
    def is_unread(self) -> bool:
        """Whether the length is not guarded."""
        return self.before.is_unread

    @property
    def items(self) -> tuple[Any, ...]:  # type: ignore[override]
        """All items; guards the length."""
        return (*self.before.items, *self.added)

    def grown(self, items: tuple[Value, ...]) -> GrownTuple:
        """This tuple and further items."""
        return GrownTuple(self.before, (*self.added, *items))

    def reconstruct(self, cg: Any) -> None:
        cg.call_const(operator.add, self.before, TupleValue(self.added))
