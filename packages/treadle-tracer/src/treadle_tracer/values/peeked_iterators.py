"""Iterators from outside that the trace steps by looking at their next items.

    for name, layer in layers.items():
        x = layer(x)
        log(x)                     # the graph breaks, and the continuation starts in the loop

A continuation that starts in a loop has the iterator of that loop as an argument. It takes one item, the one that comes next wherever the
iterator stands, so that the rest of a turn and the begin of the next one are one graph, the same for all turns. Python takes a second item.

Iterators over dicts, sets and strings, and those that go backwards, are known in this way only: where one stands in a dict cannot be asked
for, but the items that are left can.
"""

from __future__ import annotations

import functools
import gc
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle_tracer.by_identity import IdentityDict, IdentitySet
from treadle_tracer.class_facts import is_subtype
from treadle_tracer.dynamic import is_small_integer
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ApplySource, TupleItemSource
from treadle_tracer.values.iteration import LIST_ITERATOR
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.taken_iterators import TakenIterator
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext

TUPLE_ITERATOR, RANGE_ITERATOR = type(iter(())), type(iter(range(0)))
_ITEM_ITERATOR = type(iter({}.items()))
_BACKWARDS_ITEM_ITERATOR = type(reversed({}.items()))
_DICT_ITERATORS = (
    *(type(iter(view)) for view in ({}.keys(), {}.values(), {}.items())),
    *(type(reversed(view)) for view in ({}.keys(), {}.values(), {}.items())),
)
_SET_ITERATOR = type(iter(set()))
_BACKWARDS = (type(reversed([])), reversed)
_STRING_ITERATORS = (type(iter("a")), type(iter("\u00e4")))  # one for ASCII

_MOST_LEFT = 256
"""Each look at an iterator over a dict or set copies the items that are left."""


# ---- looking at a real iterator, by the pickling protocol; none of it runs code of the program


def next_of_range(iterator: Any) -> int:
    """The next number, also behind the last one."""
    parts = iterator.__reduce__()
    numbers = parts[1][0]
    return numbers.start + numbers.step * ((parts[2] if len(parts) > 2 else None) or 0)


def _ahead_in_range(iterator: Any, position: int = 0) -> tuple[int, ...]:
    if operator.length_hint(iterator) <= position:
        return ()
    return (next_of_range(iterator) + iterator.__reduce__()[1][0].step * position,)


def _ahead_in_sequence(iterator: Any, position: int = 0) -> tuple[Any, ...]:
    parts = iterator.__reduce__()
    if len(parts) == 2:  # it has let go of what it went over: later items are not seen
        return ()
    at = parts[2] + position
    return tuple(_plain(parts[1][0])[at : at + 1])


def _ahead_backwards(iterator: Any, position: int = 0) -> tuple[Any, ...]:
    parts = iterator.__reduce__()
    if len(parts) == 2:
        return ()
    sequence, at = _plain(parts[1][0]), parts[2] - position
    return (sequence[at],) if 0 <= at < len(sequence) else ()


def _plain(sequence: Any) -> Any:
    """The sequence. Raises TypeError for subclasses, which have methods of their own."""
    if type(sequence) not in _SEQUENCES:
        raise TypeError("no list, tuple or string")
    return sequence


_SEQUENCES = IdentitySet((list, tuple, str))


def _ahead_in_table(iterator: Any, position: int = 0) -> tuple[Any, ...]:
    """Raises RuntimeError where the dict or set has changed its size, as the iterator does."""
    if operator.length_hint(iterator) > _MOST_LEFT:
        raise RuntimeError("too many items are left")
    return tuple(iterator.__reduce__()[1][0][position : position + 1])


_AHEAD: IdentityDict[type, Callable[..., tuple[Any, ...]]] = IdentityDict(
    {
        LIST_ITERATOR: _ahead_in_sequence,
        TUPLE_ITERATOR: _ahead_in_sequence,
        RANGE_ITERATOR: _ahead_in_range,
        _SET_ITERATOR: _ahead_in_table,
        **dict.fromkeys(_DICT_ITERATORS, _ahead_in_table),
        **dict.fromkeys(_BACKWARDS, _ahead_backwards),
        **dict.fromkeys(_STRING_ITERATORS, _ahead_in_sequence),
    }
)
"""What comes behind `position` other items, in a tuple, which is empty where nothing does."""
PEEKED_ITERATORS = IdentitySet(tuple(_AHEAD))


class _Ahead:
    """Such a function at a position."""

    __slots__ = ("__name__", "function", "position")

    def __init__(self, function: Callable[..., tuple[Any, ...]], position: int):
        self.function = function
        self.position = position
        self.__name__ = f"{function.__name__}[{position}]"

    def __call__(self, iterator: Any) -> tuple[Any, ...]:
        return self.function(iterator, self.position)


@functools.cache
def _ahead(kind: type, position: int) -> Callable[[Any], tuple[Any, ...]]:
    function = _AHEAD[kind]
    return _Ahead(function, position) if position else function


def _container(iterator: Any) -> Any:
    """The list, dict or set that an iterator goes over; None at its end and for what cannot be changed."""
    kind = dict if type(iterator) in _DICT_ITERATORS else set if type(iterator) is _SET_ITERATOR else list
    return next((found for found in gc.get_referents(iterator) if is_subtype(type(found), kind)), None)


# ---- its value


class PeekedIterator(TakenIterator):
    """An iterator of one of `PEEKED_ITERATORS`, of which the trace takes up to `most` items."""

    __slots__ = ("most",)

    def __init__(self, obj: Any, source: Source, most: int):
        super().__init__(obj, source)
        self.most = most

    def _take(self, tx: TraceContext) -> Value | None:
        if self.taken >= self.most:
            name = self.python_type().__name__
            raise Unsupported("builtin-method", f"{name}.__next__: a second item in a part that starts in the loop")
        self._check_contents(tx)
        assert self.source is not None
        look = _ahead(type(self.obj), self.taken)
        place, found = ApplySource(self.source, look), look(self.obj)
        tx.guards.add(place, "len", len(found))
        if not found:
            return None
        (item,), at = found, TupleItemSource(place, 0)
        if type(self.obj) in (_ITEM_ITERATOR, _BACKWARDS_ITEM_ITERATOR):  # which makes a new tuple each time
            return TupleValue(tuple(tx.wrap(part, TupleItemSource(at, n)) for n, part in enumerate(item)))
        if type(self.obj) is RANGE_ITERATOR and is_small_integer(item):
            return tx.symbols.integer(tx, item, at)  # it will be another one in the next turn
        return tx.wrap(item, at)

    def _check_contents(self, tx: TraceContext) -> None:
        """Raise Unsupported where the trace may have changed what the iterator goes over: the real one is still as it was."""
        written = tx.mutations
        changed = [value for value in written.containers() if not isinstance(value, TakenIterator)]
        if not (changed or any(written.attr_stores()) or any(written.global_stores())):
            return
        container = _container(self.obj)
        if container is None:
            return
        assert self.source is not None
        is_changed = written.is_mutated(tx.wrap(container, ApplySource(self.source, _container)))
        if is_changed or (type(self.obj) in _DICT_ITERATORS and any(written.global_stores())):
            raise Unsupported("builtin-method", "an iterator from outside over a container that the trace has changed")


def peeked_iterator(tx: TraceContext, obj: Any, source: Source, most: int) -> Value:
    """The Value of an iterator for which `can_be_peeked_at`."""
    tx.guards.add(source, "type_is", type(obj))
    return PeekedIterator(obj, source, most)


def can_be_peeked_at(iterator: Any) -> bool:
    """Whether the next items of an iterator can be asked for."""
    try:
        _AHEAD[type(iterator)](iterator)
    except (RuntimeError, TypeError):
        return False
    return True


__all__ = [
    "PEEKED_ITERATORS",
    "RANGE_ITERATOR",
    "TUPLE_ITERATOR",
    "PeekedIterator",
    "can_be_peeked_at",
    "next_of_range",
    "peeked_iterator",
]
