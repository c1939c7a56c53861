"""The base of iterators from outside of which the trace takes items, and the real ones are moved on at its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle_tracer.by_identity import IdentitySet
from treadle_tracer.values.base import Constant
from treadle_tracer.values.iteration import LIST_ITERATOR, IteratorValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext

TUPLE_ITERATOR, RANGE_ITERATOR = type(iter(())), type(iter(range(0)))
DICT_ITERATORS = tuple(type(begin(view)) for begin in (iter, reversed) for view in ({}.keys(), {}.values(), {}.items()))
SET_ITERATOR = type(iter(set()))
STRING_ITERATORS = (type(iter("a")), type(iter("\u00e4")))  # one for ASCII
BACKWARDS_ITERATORS = (type(reversed([])), reversed)
_COMBINED = (enumerate, zip, map, filter)
_KINDS = IdentitySet(
    (
        LIST_ITERATOR,
        TUPLE_ITERATOR,
        RANGE_ITERATOR,
        SET_ITERATOR,
        *DICT_ITERATORS,
        *STRING_ITERATORS,
        *BACKWARDS_ITERATORS,
        *_COMBINED,
    )
)


def pickled_parts(iterator: Any) -> tuple[Any, ...]:
    """What the pickling protocol tells of an iterator: (function, its arguments) and perhaps where it stands. Runs no code of the program.

    Raises TypeError for other objects: a later call may have anything in the place of an iterator.
    """
    if type(iterator) not in _KINDS:
        raise TypeError("no iterator of a known class")
    return iterator.__reduce__()


class TakenIterator(IteratorValue):
    """An iterator of which the program takes items: `taken` of them, and is_done where it has come to the end.

    by_owner: how many of these a real `enumerate` takes that is moved on itself.
    """

    __slots__ = ("by_owner", "is_done", "obj", "taken")

    def __init__(self, obj: Any, source: Source):
        self.source = source
        self.obj = obj
        self.taken = self.by_owner = 0
        self.is_done = False

    def python_type(self) -> type:
        return type(self.obj)

    def next(self, tx: TraceContext) -> Value | None:
        tx.mutations.mutated(self)
        item = None if self.is_done else self._take(tx)
        self.is_done = item is None
        self.taken += item is not None
        return item

    def _take(self, tx: TraceContext) -> Value | None:
        raise NotImplementedError

    def leaves(self) -> list[TakenIterator]:
        return [self]

    def calls_to_replay(self) -> list[tuple[Callable[..., Any], tuple[Value, ...]]]:
        """Take the items of the real one that the program has taken."""
        left = self.taken - self.by_owner
        if left == 1 and not self.is_done:
            return [(next, ())]
        return [(move_on, (Constant(left), Constant(self.is_done)))]


def move_on(iterator: Any, taken: int, is_done: bool) -> None:
    """Take so many items of a real iterator, and where is_done ask it for one that it does not have."""
    for _ in range(taken):
        next(iterator)
    if is_done:
        next(iterator, None)


__all__ = [
    "BACKWARDS_ITERATORS",
    "DICT_ITERATORS",
    "RANGE_ITERATOR",
    "SET_ITERATOR",
    "STRING_ITERATORS",
    "TUPLE_ITERATOR",
    "TakenIterator",
    "move_on",
    "pickled_parts",
]
