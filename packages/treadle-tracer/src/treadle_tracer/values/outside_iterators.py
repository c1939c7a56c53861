"""Iterators from outside over lists, tuples and ranges, and `enumerate`, `zip`, `map` and `filter` around such iterators.

    def rest(x, layers):           # layers: an iterator that others have begun
        return [layer(x) for layer in layers]

The trace knows where one stands, takes its items in the graph's stead, and the real one is moved on at the end. Where a continuation
starts in a loop, and for dicts and sets, it looks at the next items instead: see `values.peeked_iterators`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle_tracer.by_identity import IdentityDict
from treadle_tracer.dynamic import is_small_integer
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ApplySource
from treadle_tracer.values.base import Constant
from treadle_tracer.values.iteration import LIST_ITERATOR
from treadle_tracer.values.iterators import CombiningIterator, FilterIterator
from treadle_tracer.values.peeked_iterators import (
    PEEKED_ITERATORS,
    can_be_peeked_at,
    left_in_range,
    next_of_range,
    peeked_iterator,
)
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.taken_iterators import RANGE_ITERATOR, TUPLE_ITERATOR, TakenIterator, move_on, pickled_parts
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext


# ---- the parts of a real iterator, by the pickling protocol; none of it runs code of the program


def _arguments(iterator: Any) -> tuple[Any, ...]:
    return pickled_parts(iterator)[1]


def _is_at_end(iterator: Any) -> bool:
    """Whether a list or tuple iterator has let go of what it went over: later items are not seen."""
    return len(pickled_parts(iterator)) == 2


def _sequence(iterator: Any) -> Any:
    """What a list or tuple iterator goes over."""
    return _arguments(iterator)[0]


def _position(iterator: Any) -> int:
    return pickled_parts(iterator)[2]


def _step_of_range(iterator: Any) -> int:
    return _arguments(iterator)[0].step


def _count(iterator: Any) -> int:
    return _arguments(iterator)[1]


class _Part:
    """`arguments[position]` of the call that would make the iterator."""

    __slots__ = ("__name__", "position")

    def __init__(self, position: int):
        self.position = position
        self.__name__ = f"part {position} of"

    def __call__(self, iterator: Any) -> Any:
        return _arguments(iterator)[self.position]


@functools.cache
def _part(position: int) -> _Part:
    return _Part(position)


def _is_strict(iterator: Any) -> bool:
    return len(pickled_parts(iterator)) > 2


# ---- their values


class OutsideSequenceIterator(TakenIterator):
    """`iter(sequence)` of a list or tuple, at a position; sequence: None behind its end."""

    __slots__ = ("position", "sequence")

    def __init__(self, obj: Any, source: Source, sequence: Value | None, position: Value):
        super().__init__(obj, source)
        self.sequence, self.position = sequence, position

    def _take(self, tx: TraceContext) -> Value | None:
        if self.sequence is None:
            return None
        if tx.mutations.is_mutated(self.sequence):
            raise Unsupported("builtin-method", "an iterator from outside over a list that the trace has changed")
        if not tx.compare("<", self.position, self.sequence.length_value(tx)).truth(tx):
            return None
        item = self.sequence.get_item(tx, self.position)
        self.position = tx.binary_op("+", self.position, Constant(1))
        return item


class OutsideRangeIterator(TakenIterator):
    """`iter(range(...))`, whose next number is `current`, with `left` numbers to go."""

    __slots__ = ("current", "left", "step")

    def __init__(self, obj: Any, source: Source, current: Value, step: Value, left: Value):
        super().__init__(obj, source)
        self.current, self.step, self.left = current, step, left

    def _take(self, tx: TraceContext) -> Value | None:
        if not tx.compare(">", self.left, Constant(0)).truth(tx):
            return None
        item = self.current
        self.current = tx.binary_op("+", item, self.step)
        self.left = tx.binary_op("-", self.left, Constant(1))
        return item


class OutsideEnumerate(TakenIterator):
    """`enumerate(inner, count)`. The real one takes the items of the real inner one."""

    __slots__ = ("count", "inner")

    def __init__(self, obj: Any, source: Source, inner: Value, count: Value):
        super().__init__(obj, source)
        self.inner, self.count = inner, count

    def next(self, tx: TraceContext) -> Value | None:
        tx.mutations.mutated(self)  # before those that it goes over: the real one is moved on first
        leaves = _leaves(self.inner)
        if any(leaf.taken != leaf.by_owner or leaf.is_done for leaf in leaves):
            raise Unsupported("builtin-method", "an enumerate around an iterator that the program moves on itself")
        item = self.inner.next(tx)
        if item is None:
            return None
        for leaf in leaves:
            leaf.by_owner += 1
        self.taken += 1
        number = self.count
        self.count = tx.binary_op("+", number, Constant(1))
        return TupleValue((number, item))

    def leaves(self) -> list[TakenIterator]:
        return _leaves(self.inner)

    def calls_to_replay(self) -> list[tuple[Callable[..., Any], tuple[Value, ...]]]:
        """Take the items of the real one. What is at the end has been moved there by itself."""
        return [(next, ()) if self.taken == 1 else (move_on, (Constant(self.taken), Constant(False)))]


def _leaves(iterator: Any) -> list[TakenIterator]:
    if isinstance(iterator, CombiningIterator):
        return [leaf for inner in iterator.inner for leaf in _leaves(inner)]
    return iterator.leaves()


# ---- wrapping


def _of_sequence(tx: TraceContext, obj: Any, source: Source) -> Value:
    if tx.wrap(_is_at_end(obj), ApplySource(source, _is_at_end)).constant():
        return OutsideSequenceIterator(obj, source, None, Constant(0))
    sequence = tx.wrap(_sequence(obj), ApplySource(source, _sequence))
    return OutsideSequenceIterator(obj, source, sequence, tx.wrap(_position(obj), ApplySource(source, _position)))


def _of_range(tx: TraceContext, obj: Any, source: Source) -> Value:
    current, step, left = (
        tx.wrap(function(obj), ApplySource(source, function))
        for function in (next_of_range, _step_of_range, left_in_range)
    )
    return OutsideRangeIterator(obj, source, current, step, left)


def _of_enumerate(tx: TraceContext, obj: Any, source: Source) -> Value:
    inner = tx.wrap(_arguments(obj)[0], ApplySource(source, _part(0)))
    number, place = _count(obj), ApplySource(source, _count)
    is_symbol = is_small_integer(number) and not tx.unrolls_outside_iterators  # each turn has another one
    count = tx.symbols.integer(tx, number, place) if is_symbol else tx.wrap(number, place)
    return OutsideEnumerate(obj, source, inner, count)


def _of_zip(tx: TraceContext, obj: Any, source: Source) -> Value:
    strict = tx.wrap(_is_strict(obj), ApplySource(source, _is_strict)).constant()
    tx.guards.add(ApplySource(source, _arguments), "len", len(_arguments(obj)))
    return _sourced(CombiningIterator(zip, None, _parts(tx, obj, source), strict), source)


def _of_map(tx: TraceContext, obj: Any, source: Source) -> Value:
    tx.guards.add(ApplySource(source, _arguments), "len", len(_arguments(obj)))
    function, *inner = _parts(tx, obj, source)
    return _sourced(CombiningIterator(map, function, inner), source)


def _of_filter(tx: TraceContext, obj: Any, source: Source) -> Value:
    function, inner = _parts(tx, obj, source)
    return _sourced(FilterIterator(function, inner), source)


def _parts(tx: TraceContext, obj: Any, source: Source) -> list[Value]:
    return [tx.wrap(part, ApplySource(source, _part(n))) for n, part in enumerate(_arguments(obj))]


def _sourced(iterator: Any, source: Source) -> Value:
    iterator.source = source
    return iterator


_WRAPPERS: IdentityDict[type, Callable[[TraceContext, Any, Source], Value]] = IdentityDict(
    {
        LIST_ITERATOR: _of_sequence,
        TUPLE_ITERATOR: _of_sequence,
        RANGE_ITERATOR: _of_range,
        enumerate: _of_enumerate,
        zip: _of_zip,
        map: _of_map,
        filter: _of_filter,
    }
)
OUTSIDE_ITERATORS = tuple({*_WRAPPERS, *PEEKED_ITERATORS})
"""The types of such iterators."""

_DEEPEST = 4


def wrap_iterator(tx: TraceContext, obj: Any, source: Source) -> Value | None:
    """The Value of an outside iterator; None where only its type is to be known."""
    if not _is_known(obj, _DEEPEST):
        return None
    kind = type(obj)
    if kind not in _WRAPPERS or (kind in PEEKED_ITERATORS and not tx.unrolls_outside_iterators):
        return peeked_iterator(tx, obj, source, sys.maxsize if tx.unrolls_outside_iterators else 1)
    tx.guards.add(source, "type_is", kind)
    return _WRAPPERS[kind](tx, obj, source)


def _is_known(obj: Any, depth: int, below_enumerate: bool = False) -> bool:
    """Whether all items of the iterator can be asked for. Below an `enumerate`, no function is called: the real one would call it again."""
    kind = type(obj)
    if kind in PEEKED_ITERATORS:
        return can_be_peeked_at(obj)
    if kind not in _WRAPPERS or not depth or (below_enumerate and kind in (map, filter, enumerate)):
        return False
    if kind is enumerate and type(_count(obj)) is not int:
        return False
    inner = {enumerate: slice(1), zip: slice(None), map: slice(1, None), filter: slice(1, None)}[kind]
    return all(_is_known(part, depth - 1, below_enumerate or kind is enumerate) for part in _arguments(obj)[inner])


__all__ = ["OUTSIDE_ITERATORS", "wrap_iterator"]
