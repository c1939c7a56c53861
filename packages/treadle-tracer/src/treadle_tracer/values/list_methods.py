"""Methods of lists and deques as the evaluator carries them out, and sorting with the traced `<`."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from treadle_tracer.values.base import NONE, Constant, Value
from treadle_tracer.values.sequences import LIST_METHODS, ListMethod, ListValue

if TYPE_CHECKING:
    from treadle_tracer.trace.tracer import Tracer

_BOTH = (list, collections.deque)
_DEQUE = (collections.deque,)


def _list_method(*names: str, of: tuple[type, ...] = _BOTH) -> Callable[[ListMethod], ListMethod]:
    def register(function: ListMethod) -> ListMethod:
        for kind in of:
            LIST_METHODS[kind].update(dict.fromkeys(names, function))
        return function

    return register


@_list_method("append")
def _append(self: ListValue, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (item,) = args
    self.items.append(item)
    if self.maxlen is not None and len(self.items) > self.maxlen:
        del self.items[0]
    self.changed(tx)
    return NONE


@_list_method("appendleft", of=_DEQUE)
def _appendleft(self: ListValue, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (item,) = args
    self.items.insert(0, item)
    if self.maxlen is not None and len(self.items) > self.maxlen:
        del self.items[-1]
    self.changed(tx)
    return NONE


@_list_method("extend", "__iadd__")
def _extend(self: ListValue, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    for item in args[0].unpack(tx):
        _append(self, tx, [item], {})
    return NONE


@_list_method("insert")
def _insert(self: ListValue, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    self.items.insert(tx.index(args[0]), args[1])
    self.changed(tx)
    return NONE


@_list_method("extendleft", of=_DEQUE)
def _extendleft(self: ListValue, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    for item in args[0].unpack(tx):
        _appendleft(self, tx, [item], {})
    return NONE


@_list_method("rotate", of=_DEQUE)
def _rotate(self: ListValue, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    steps = (tx.index(args[0]) if args else 1) % max(len(self.items), 1)
    self.items[:] = self.items[-steps:] + self.items[:-steps] if steps else self.items
    self.changed(tx)
    return NONE


@_list_method("pop")
def _pop(self: ListValue, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    index = tx.index(args[0]) if args else -1
    try:
        item = self.item(tx, index)
    except IndexError as error:
        tx.raise_real(IndexError("pop from empty list" if not self.items else str(error)))
    del self.items[index]
    self.changed(tx)
    return item


@_list_method("popleft", of=_DEQUE)
def _popleft(self: ListValue, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _pop(self, tx, [Constant(0)], {})


@_list_method("remove")
def _remove(self: ListValue, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    position = self.find(tx, args)
    if position < 0:
        tx.raise_exception(ValueError, "list.remove(x): x not in list")
    del self.items[position]
    self.changed(tx)
    return NONE


@_list_method("clear")
def _clear(self: ListValue, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    self.items.clear()
    self.changed(tx)
    return NONE


@_list_method("copy", "__copy__")
def _copy(self: ListValue, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    made = ListValue(list(self.items), self.cls)
    made.maxlen = self.maxlen
    return made


@_list_method("reverse")
def _reverse(self: ListValue, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    self.items.reverse()
    self.changed(tx)
    return NONE


@_list_method("sort", of=(list,))
def _sort(self: ListValue, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    self.items[:] = sorted_values(tx, self.unpack(tx), kwargs.get("key", NONE), kwargs.get("reverse", NONE))
    self.changed(tx)
    return NONE


def sorted_values(tx: Tracer, items: list[Value], key: Value, reverse: Value) -> list[Value]:
    """Items in the order of `sorted`, comparing with the traced `<`; stable, also when reversed."""
    keys = items if key.is_constant() and key.constant() is None else [tx.call(key, [item], {}) for item in items]

    def compare(a: int, b: int) -> int:
        if tx.truth(tx.compare("<", keys[a], keys[b])):
            return -1
        return 1 if tx.truth(tx.compare("<", keys[b], keys[a])) else 0

    backwards = tx.truth(reverse)
    order = sorted(range(len(items)), key=functools.cmp_to_key(compare), reverse=backwards)
    return [items[position] for position in order]
