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

from treadle_tracer.by_identity import IdentityDict, IdentitySet, is_one_of
from treadle_tracer.class_facts import is_subtype
from treadle_tracer.dynamic import is_small_integer
from treadle_tracer.errors import ChosenBreak, Unsupported
from treadle_tracer.source import ApplySource, TupleItemSource
from treadle_tracer.values.iteration import LIST_ITERATOR
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.taken_iterators import (
    BACKWARDS_ITERATORS,
    DICT_ITERATORS,
    RANGE_ITERATOR,
    SET_ITERATOR,
    STRING_ITERATORS,
    TUPLE_ITERATOR,
    TakenIterator,
    pickled_parts,
)
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext

_ITEM_ITERATORS = (type(iter({}.items())), type(reversed({}.items())))

_MOST_LEFT = 256
"""Each look at an iterator over a dict or set copies the items that are left."""
_LONGEST_REST = 100
"""In nodes of the graph. What is behind a break in a loop is compiled twice, for turns that others follow and for the last one."""


# ---- looking at a real iterator; none of it runs code of the program


def next_of_range(iterator: Any) -> int:
    """The next number, also behind the last one."""
    parts = pickled_parts(iterator)
    numbers = parts[1][0]
    return numbers.start + numbers.step * ((parts[2] if len(parts) > 2 else None) or 0)


def left_in_range(iterator: Any) -> int:
    """How many numbers come."""
    return RANGE_ITERATOR.__length_hint__(iterator)


def _ahead_in_range(iterator: Any, position: int) -> tuple[int, ...]:
    if left_in_range(iterator) <= position:
        return ()
    return (next_of_range(iterator) + pickled_parts(iterator)[1][0].step * position,)


def _ahead_in_sequence(iterator: Any, position: int) -> tuple[Any, ...]:
    parts = pickled_parts(iterator)
    if len(parts) == 2:  # it has let go of what it went over: later items are not seen
        return ()
    at = parts[2] + position
    return tuple(_plain(parts[1][0])[at : at + 1])


def _ahead_backwards(iterator: Any, position: int) -> tuple[Any, ...]:
    parts = pickled_parts(iterator)
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


def _ahead_in_table(iterator: Any, position: int) -> tuple[Any, ...]:
    """Raises RuntimeError where the dict or set has changed its size, as the iterator does."""
    if operator.length_hint(iterator) > _MOST_LEFT:
        raise RuntimeError("too many items are left")
    return tuple(pickled_parts(iterator)[1][0][position : position + 1])


_AHEAD: IdentityDict[type, Callable[[Any, int], tuple[Any, ...]]] = IdentityDict(
    {
        LIST_ITERATOR: _ahead_in_sequence,
        TUPLE_ITERATOR: _ahead_in_sequence,
        RANGE_ITERATOR: _ahead_in_range,
        SET_ITERATOR: _ahead_in_table,
        **dict.fromkeys(DICT_ITERATORS, _ahead_in_table),
        **dict.fromkeys(BACKWARDS_ITERATORS, _ahead_backwards),
        **dict.fromkeys(STRING_ITERATORS, _ahead_in_sequence),
    }
)
"""What comes behind `position` other items, in a tuple, which is empty where nothing does."""
PEEKED_ITERATORS = IdentitySet(tuple(_AHEAD))


def ahead(iterator: Any, position: int) -> tuple[Any, ...]:
    """What comes behind `position` other items, in a tuple, which is empty where nothing does.

    Raises TypeError where that cannot be asked for, and RuntimeError for a dict or set that has changed its size, as the iterator does.
    """
    look = _AHEAD.get(type(iterator))
    if look is None:  # a later call may have anything in the place of an iterator
        raise TypeError("no iterator of a known class")
    return look(iterator, position)


class _Look:
    """A function of an iterator and a position, at a position."""

    __slots__ = ("__name__", "function", "position")

    def __init__(self, function: Callable[[Any, int], Any], position: int):
        self.function = function
        self.position = position
        self.__name__ = f"{function.__name__}[{position}]"

    def __call__(self, iterator: Any) -> Any:
        return self.function(iterator, self.position)


def has_more(iterator: Any, position: int) -> bool:
    """Whether an item comes behind `position` others."""
    return bool(ahead(iterator, position))


@functools.cache
def _at(function: Callable[[Any, int], Any], position: int) -> _Look:
    return _Look(function, position)


def _container(iterator: Any) -> Any:
    """The list, dict or set that an iterator goes over; None at its end and for what cannot be changed."""
    kind = dict if type(iterator) in DICT_ITERATORS else set if type(iterator) is SET_ITERATOR else list
    return next((found for found in gc.get_referents(iterator) if is_subtype(type(found), kind)), None)


def is_look_at_end(function: Any) -> bool:
    """Whether a guard that applies this function is about an iterator that has come to its end or not."""
    return type(function) is _Look and function.function is has_more


# ---- its value


class PeekedIterator(TakenIterator):
    """An iterator of one of `PEEKED_ITERATORS`, of which the trace takes up to `most` items."""

    __slots__ = ("most",)

    def __init__(self, obj: Any, source: Source, most: int):
        super().__init__(obj, source)
        self.most = most

    def _take(self, tx: TraceContext) -> Value | None:
        why_not = self._why_not_take(tx)
        if why_not is not None:
            raise ChosenBreak("builtin-method", f"{self.python_type().__name__}.__next__: {why_not}")
        self._check_contents(tx)
        assert self.source is not None
        found = ahead(self.obj, self.taken)
        tx.guards.add(ApplySource(self.source, _at(has_more, self.taken)), "is", bool(found))
        if not found:
            return None
        (item,), at = found, TupleItemSource(ApplySource(self.source, _at(ahead, self.taken)), 0)
        if is_one_of(type(self.obj), _ITEM_ITERATORS):  # which make a new tuple each time
            return TupleValue(tuple(tx.wrap(part, TupleItemSource(at, n)) for n, part in enumerate(item)))
        if type(self.obj) is RANGE_ITERATOR and is_small_integer(item):
            return tx.symbols.integer(tx, item, at)  # it will be another one in the next turn
        return tx.wrap(item, at)

    def _why_not_take(self, tx: TraceContext) -> str | None:
        if self.taken >= self.most:
            return "a second item in a part that starts in the loop"
        if self.most == 1 and len(list(tx.graph.nodes)) > _LONGEST_REST:
            return "the rest of a turn is long"
        return None

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
        if is_changed or (is_one_of(type(self.obj), DICT_ITERATORS) and any(written.global_stores())):
            raise Unsupported("builtin-method", "an iterator from outside over a container that the trace has changed")


def peeked_iterator(tx: TraceContext, obj: Any, source: Source, most: int) -> Value:
    """The Value of an iterator for which `can_be_peeked_at`."""
    tx.guards.add(source, "type_is", type(obj))
    return PeekedIterator(obj, source, most)


def can_be_peeked_at(iterator: Any) -> bool:
    """Whether the next items of an iterator can be asked for."""
    try:
        ahead(iterator, 0)
    except (RuntimeError, TypeError, ValueError):
        return False
    return True


__all__ = [
    "PEEKED_ITERATORS",
    "PeekedIterator",
    "can_be_peeked_at",
    "is_look_at_end",
    "left_in_range",
    "next_of_range",
    "peeked_iterator",
]
