"""Python's iterator classes that the trace carries out: enumerate, zip, map, filter and reversed.

They can leave the trace in the middle of their run: they are made again around their inner iterators.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle_tracer.tables import disjoint
from treadle_tracer.values.base import NONE, Constant, is_none
from treadle_tracer.values.class_lookup import MISSING, lookup
from treadle_tracer.values.grouping_iterators import group_by
from treadle_tracer.values.iteration import ItemIterator, IteratorValue, ReversedIterator
from treadle_tracer.values.itertools_iterators import ITERTOOLS
from treadle_tracer.values.sequences import ListValue, TupleValue
from treadle_tracer.values.value import Value, special_method

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_Make = Callable[["TraceContext", "list[Value]", "dict[str, Value]"], Value]


class EnumerateIterator(IteratorValue):
    """`enumerate(inner, count)`."""

    __slots__ = ("count", "inner")

    def __init__(self, inner: Value, count: int):
        self.source = None
        self.inner = inner
        self.count = count

    def python_type(self) -> type:
        return enumerate

    def next(self, tx: TraceContext) -> Value | None:
        item = self.inner.next(tx)
        if item is None:
            return None
        self.count += 1
        return TupleValue((Constant(self.count - 1), item))

    def reconstruct(self, cg: Any) -> None:
        cg.cb.push_null()
        cg.const(enumerate)
        cg.value(self.inner)
        cg.const(self.count)
        cg.cb.call(2)


class CombiningIterator(IteratorValue):
    """`zip(*inner)` (function None) or `map(function, *inner)`; `strict` is zip's."""

    __slots__ = ("cls", "function", "inner", "strict")

    def __init__(self, cls: type, function: Value | None, inner: list[Value], strict: bool = False):
        self.source = None
        self.cls = cls
        self.function = function
        self.inner = inner
        self.strict = strict

    def python_type(self) -> type:
        return self.cls

    def next(self, tx: TraceContext) -> Value | None:
        items: list[Value] = []
        for position, iterator in enumerate(self.inner):
            item = iterator.next(tx)
            if item is None:
                if self.strict:
                    self._check_lengths(tx, position)
                return None
            items.append(item)
        if not items:
            return None
        return TupleValue(items) if self.function is None else self.function.call(tx, items, {})

    def _check_lengths(self, tx: TraceContext, ended: int) -> None:
        longer = "argument 1" if ended == 1 else f"arguments 1-{ended}"
        if ended > 0:
            tx.raise_exception(ValueError, f"zip() argument {ended + 1} is shorter than {longer}")
        for position, iterator in enumerate(self.inner[1:], start=2):
            if iterator.next(tx) is not None:
                shorter = "argument 1" if position == 2 else f"arguments 1-{position - 1}"
                tx.raise_exception(ValueError, f"zip() argument {position} is longer than {shorter}")

    def reconstruct(self, cg: Any) -> None:
        parts = [*([] if self.function is None else [self.function]), *self.inner]
        cg.cb.push_null()
        cg.const(_strict_zip if self.strict else self.cls)
        for part in parts:
            cg.value(part)
        cg.cb.call(len(parts))


def _strict_zip(*inner: Any) -> Any:
    return zip(*inner, strict=True)


class FilterIterator(IteratorValue):
    """`filter(function, inner)`."""

    __slots__ = ("function", "inner")

    def __init__(self, function: Value, inner: Value):
        self.source = None
        self.function = function
        self.inner = inner

    def python_type(self) -> type:
        return filter

    def next(self, tx: TraceContext) -> Value | None:
        keep_all = is_none(self.function)
        while (item := self.inner.next(tx)) is not None:
            if (item if keep_all else self.function.call(tx, [item], {})).truth(tx):
                return item
        return None

    def reconstruct(self, cg: Any) -> None:
        cg.cb.push_null()
        cg.const(filter)
        cg.value(self.function)
        cg.value(self.inner)
        cg.cb.call(2)


def _enumerate(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    start = kwargs.get("start", args[1] if len(args) > 1 else Constant(0))
    return EnumerateIterator(kwargs.get("iterable", args[0] if args else NONE).iterate(tx), start.as_index(tx))


def _zip(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    strict = kwargs["strict"].truth(tx) if "strict" in kwargs else False
    return CombiningIterator(zip, None, [arg.iterate(tx) for arg in args], strict)


def _map(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return CombiningIterator(map, args[0], [arg.iterate(tx) for arg in args[1:]])


def _filter(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return FilterIterator(args[0], args[1].iterate(tx))


def _reversed(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if isinstance(args[0], (ListValue, TupleValue)):
        return ReversedIterator(args[0])
    from_class = special_method(tx, args[0], "__reversed__")
    if from_class is not None:
        return from_class.call(tx, [], {})
    if any(lookup(tx, args[0].python_type(), name) is MISSING for name in ("__len__", "__getitem__")):
        tx.raise_exception(TypeError, f"{args[0].python_type().__name__!r} object is not reversible")
    length = args[0].length(tx)
    if lookup(tx, args[0].python_type(), "__reversed__") is MISSING:
        return ItemIterator(args[0], length, step=-1)
    return tx.list_iterator([args[0].get_item(tx, Constant(position)) for position in range(length - 1, -1, -1)])


CLASS_ITERATORS: dict[Any, _Make] = disjoint(
    {enumerate: _enumerate, zip: _zip, map: _map, filter: _filter, reversed: _reversed, itertools.groupby: group_by},
    ITERTOOLS,
)
"""Iterator classes, by the class that is called."""
