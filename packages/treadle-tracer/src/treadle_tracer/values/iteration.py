"""Iterators carried out by the trace: their base, iterators over Python's containers, and iterators made by Python generators."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import Constant, LazyValue, Method
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

LIST_ITERATOR = type(iter([]))


class IteratorValue(Value):
    """Base of iterators that the trace carries out. `next` gives the next item, or None at the end."""

    __slots__ = ()

    def iterate(self, tx: TraceContext) -> Value:
        return self

    def next(self, tx: TraceContext) -> Value | None:
        raise NotImplementedError

    def truth(self, tx: TraceContext) -> bool:
        return True

    def unpack(self, tx: TraceContext) -> list[Value]:
        items: list[Value] = []
        while (item := self.next(tx)) is not None:
            items.append(item)
        return items

    def contains(self, tx: TraceContext, item: Value) -> bool:
        while (own := self.next(tx)) is not None:
            if tx.same_or_equal(own, item):
                return True
        return False

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        if name in ("__next__", "__iter__"):
            return Method(self, name, None)
        return super().get_attr(tx, name)

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__iter__":
            return self
        if name == "__next__":
            item = self.next(tx)
            return tx.raise_exception(StopIteration) if item is None else item
        return super().builtin_method(tx, name, args, kwargs)


_ITERATOR_TYPES = {tuple: type(iter(())), collections.deque: type(iter(collections.deque())), list: LIST_ITERATOR}


class SequenceIterator(IteratorValue):
    """`iter(list)`: sees items appended while it runs."""

    __slots__ = ("position", "sequence")

    def __init__(self, sequence: Any, position: int = 0):
        self.source = None
        self.sequence = sequence
        self.position = position

    def python_type(self) -> type:
        cls = self.sequence.python_type()
        return next(kind for base, kind in _ITERATOR_TYPES.items() if issubclass(cls, base))

    def next(self, tx: TraceContext) -> Value | None:
        if self.position >= len(self.sequence.items):
            self.position = 1 << 62  # an exhausted list iterator stays exhausted
            return None
        item = self.sequence.item(tx, self.position)
        self.position += 1
        return item

    def remaining(self) -> list[Value]:
        return list(self.sequence.items[self.position :])

    def reconstruct(self, cg: Any) -> None:
        """Push a fresh iterator over the sequence, advanced to the position of this one.

        It is made before the list's changes are replayed, so it must not stand behind the items of before.
        """
        if cg.mutations.is_mutated(self.sequence) and len(self.sequence.obj) < self.position <= len(
            self.sequence.items
        ):
            raise Unsupported("reconstruct", "an iterator over items that the trace has appended")
        cg.cb.push_null()
        cg.const(_iterator_at)
        cg.value(self.sequence)
        cg.const(self.position)
        cg.cb.call(2)


def _iterator_at(sequence: Any, position: int) -> Any:
    iterator = iter(sequence)
    if not hasattr(iterator, "__setstate__"):  # a deque's
        return advanced(iterator, position)
    iterator.__setstate__(position if position < len(sequence) else len(sequence))
    if position > len(sequence):
        next(iterator, None)
    return iterator


class ReversedIterator(IteratorValue):
    """`reversed(list)` or `reversed(tuple)`: `position` is the next index."""

    __slots__ = ("position", "sequence")

    def __init__(self, sequence: Any):
        self.source = None
        self.sequence = sequence
        self.position = len(sequence.items) - 1

    def python_type(self) -> type:
        return reversed if issubclass(self.sequence.python_type(), tuple) else type(reversed([]))

    def next(self, tx: TraceContext) -> Value | None:
        if not 0 <= self.position < len(self.sequence.items):
            self.position = -1
            return None
        self.position -= 1
        return self.sequence.item(tx, self.position + 1)

    def reconstruct(self, cg: Any) -> None:
        cg.cb.push_null()
        cg.const(_reversed_at)
        cg.value(self.sequence)
        cg.const(self.position)
        cg.cb.call(2)


def _reversed_at(sequence: Any, position: int) -> Any:
    iterator = reversed(sequence)
    if not hasattr(iterator, "__setstate__"):
        return advanced(iterator, len(sequence) - 1 - position)
    iterator.__setstate__(position)
    return iterator


class ItemIterator(IteratorValue):
    """`iter(owner)`, or where `step` is -1 `reversed(owner)`, of an object with `count` items, which are looked up one by one."""

    __slots__ = ("count", "owner", "position", "step")

    def __init__(self, owner: Value, count: int, step: int = 1):
        self.source = None
        self.owner = owner
        self.count = count
        self.step = step
        self.position = 0 if step > 0 else count - 1

    def python_type(self) -> type:
        return ITEM_ITERATOR if self.step > 0 else reversed

    def next(self, tx: TraceContext) -> Value | None:
        if not 0 <= self.position < self.count:
            return None
        self.position += self.step
        return self.owner.get_item(tx, Constant(self.position - self.step))

    def reconstruct(self, cg: Any) -> None:
        cg.cb.push_null()
        cg.const(_iterator_at if self.step > 0 else _reversed_at)
        cg.value(self.owner)
        cg.const(self.position)
        cg.cb.call(2)


class _HasItems:
    def __getitem__(self, position: int) -> Any: ...


ITEM_ITERATOR = type(iter(_HasItems()))


class FixedIterator(IteratorValue):
    """`iter(owner)` of an object that has these items, Values or constants: a string, a range."""

    __slots__ = ("cls", "items", "owner", "position")

    def __init__(self, owner: Value, items: Sequence[Any], cls: type):
        self.source = None
        self.owner = owner
        self.items = items
        self.cls = cls
        self.position = 0

    def python_type(self) -> type:
        return self.cls

    def next(self, tx: TraceContext) -> Value | None:
        self.position += 1
        try:
            item = self.items[self.position - 1]
        except IndexError:
            self.items = ()
            return None
        return item if isinstance(item, Value) else tx.from_constant(item)

    def reconstruct(self, cg: Any) -> None:
        cg.call_const(_iterator_after, self.owner, Constant(self.position))


class DictIterator(IteratorValue):
    """`iter(d)`, `iter(d.values())` or `iter(d.items())`, or `reversed` of one; `make` makes the item of a (key, value) pair.

    `host` iterates over the entries, a dict to which the program's changes happen too, and so it raises what the program's iterator does.
    """

    __slots__ = ("cls", "host", "is_backwards", "keys", "make", "mapping", "position", "view")

    def __init__(
        self, mapping: Any, view: str, cls: type, make: Callable[[Value, Value], Value], is_backwards: bool = False
    ):
        self.source = None
        self.mapping = mapping
        self.view = view
        self.cls = cls
        self.make = make
        self.keys = list(mapping.entries)
        self.is_backwards = is_backwards
        self.host = reversed(mapping.entries) if is_backwards else iter(mapping.entries)
        self.position = 0

    def python_type(self) -> type:
        return self.cls

    def next(self, tx: TraceContext) -> Value | None:
        """Raises RuntimeError when the keys of the dict have changed, as Python's iterators do."""
        entries = self.mapping.entries  # those of an object's `__dict__` are brought up to date
        if issubclass(self.mapping.cls, collections.OrderedDict) and list(entries) != self.keys:
            raise Unsupported("builtin-method", "iteration over an OrderedDict whose keys change")
        try:
            hashed = next(self.host, _END)
        except RuntimeError as error:
            tx.raise_real(error)
        self.position += 1
        if hashed is _END:
            return None
        key, value = entries[hashed]
        return self.make(key, value.force(tx) if self.view != "keys" and isinstance(value, LazyValue) else value)

    def reconstruct(self, cg: Any) -> None:
        mapping = self.mapping if self.mapping.owner is None else self.mapping.owner
        if cg.mutations.is_mutated(mapping) or list(self.mapping.entries) != self.keys:
            raise Unsupported("reconstruct", f"a {self.cls.__name__} of a dict that has changed")
        numbers = Constant(self.position), Constant(self.is_backwards)
        cg.call_const(_dict_iterator_after, mapping, Constant(self.view), *numbers)


_END: Any = object()


def advanced(iterator: Iterator[Any], count: int) -> Iterator[Any]:
    """Run-time helper: the iterator behind its next `count` items."""
    for _ in range(count):
        next(iterator, None)
    return iterator


def _iterator_after(owner: Any, count: int) -> Any:
    return advanced(iter(owner), count)


def _dict_iterator_after(mapping: Any, view: str, count: int, is_backwards: bool) -> Any:
    items = getattr(mapping, view)()
    return advanced(reversed(items) if is_backwards else iter(items), count)


class HostIterator(IteratorValue):
    """An iterator over the Values of a Python generator."""

    __slots__ = ("cls", "host")

    def __init__(self, host: Iterator[Value], cls: type = LIST_ITERATOR):
        self.source = None
        self.host = host
        self.cls = cls

    def python_type(self) -> type:
        return self.cls

    def next(self, tx: TraceContext) -> Value | None:
        return next(self.host, None)

    def reconstruct(self, cg: Any) -> None:
        """Not possible in the middle of a run: the generator cannot be made again."""
        raise Unsupported("reconstruct", f"a {self.cls.__name__} in the middle of its run")
