"""`itertools.groupby` with its groups, and `iter(function, sentinel)`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import NONE, is_none
from treadle_tracer.values.itertools_iterators import LibraryIterator
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.value import Raised, Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


class _GroupBy(LibraryIterator):
    """`key` and `item` are of the item that has been read last; `number` counts groups, so that a group sees that it is over."""

    __slots__ = ("function", "inner", "item", "key", "number", "wanted")
    cls = itertools.groupby

    def __init__(self, function: Value, inner: Value):
        super().__init__()
        self.function, self.inner = function, inner
        self.key: Value | None = None
        self.item: Value | None = None
        self.wanted: Value | None = None
        self.number = 0

    def next(self, tx: TraceContext) -> Value | None:
        self.number += 1
        while self.key is None or (self.wanted is not None and tx.same_or_equal(self.wanted, self.key)):
            if not self.read(tx):
                return None
        self.wanted = self.key
        return TupleValue((self.key, _Group(self, self.key, self.number)))

    def read(self, tx: TraceContext) -> bool:
        """Whether there is one more item, which is `item` then."""
        item = self.inner.next(tx)
        if item is None:
            return False
        is_plain = is_none(self.function)
        self.key = item if is_plain else self.function.call(tx, [item], {})
        self.item = item
        return True

    def parts(self) -> tuple[Callable[..., Any], list[Value]]:
        if self.number:
            raise Unsupported("reconstruct", "itertools.groupby in the middle of its run")
        return itertools.groupby, [self.inner, self.function]


class _Group(LibraryIterator):
    """The items of one group, as long as the groupby has not gone on to the next."""

    __slots__ = ("key", "number", "owner")
    cls = type(next(itertools.groupby("a"))[1])

    def __init__(self, owner: _GroupBy, key: Value, number: int):
        super().__init__()
        self.owner, self.key, self.number = owner, key, number

    def next(self, tx: TraceContext) -> Value | None:
        owner = self.owner
        if owner.number != self.number:
            return None
        if owner.item is None and not owner.read(tx):
            return None
        if owner.key is None or not tx.same_or_equal(self.key, owner.key):
            return None
        item, owner.item = owner.item, None
        return item

    def parts(self) -> tuple[Callable[..., Any], list[Value]]:
        raise Unsupported("reconstruct", "a group of itertools.groupby")


def group_by(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    named = {**dict(zip(("iterable", "key"), args, strict=False)), **kwargs}
    return _GroupBy(named.get("key", NONE), named["iterable"].iterate(tx))


class CallIterator(LibraryIterator):
    """`iter(function, sentinel)`: calls until the result equals the sentinel."""

    __slots__ = ("function", "sentinel")
    cls = type(iter(int, 0))

    def __init__(self, function: Value, sentinel: Value):
        super().__init__()
        self.function: Value | None = function
        self.sentinel = sentinel

    def next(self, tx: TraceContext) -> Value | None:
        if self.function is None:
            return None
        try:
            item = self.function.call(tx, [], {})
        except Raised as raised:
            if not issubclass(raised.value.python_type(), StopIteration):
                raise
            self.function = None
            return None
        if tx.same_or_equal(self.sentinel, item):
            self.function = None
            return None
        return item

    def parts(self) -> tuple[Callable[..., Any], list[Value]]:
        return (iter, [TupleValue(())]) if self.function is None else (iter, [self.function, self.sentinel])
