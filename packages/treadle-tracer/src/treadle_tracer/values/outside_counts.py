"""`itertools.count` objects from outside: the trace knows where one stands, and the real one is moved on at the end.

ids = itertools.count()
def f(x): return x + next(ids)
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle_tracer.dynamic import is_small_integer
from treadle_tracer.source import ApplySource
from treadle_tracer.values.base import Constant
from treadle_tracer.values.iteration import IteratorValue
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext

_TEXT = re.compile(r"count\((-?\d+)(?:, (-?\d+))?\)")


def _state(counter: Any) -> tuple[int, int] | None:
    """(next number, step) of a count of ints. Its `repr` tells; what else would (`__reduce__`) warns from Python 3.12 on."""
    if type(counter) is not itertools.count:  # a later call may have anything in its place
        return None
    found = _TEXT.fullmatch(repr(counter))
    return None if found is None else (int(found[1]), int(found[2] or 1))


def _next_number(counter: Any) -> int | None:
    state = _state(counter)
    return None if state is None else state[0]


def _step(counter: Any) -> int | None:
    state = _state(counter)
    return None if state is None else state[1]


class OutsideCount(IteratorValue):
    """A count of ints, of which the program has taken `taken` numbers."""

    __slots__ = ("current", "obj", "step", "taken")

    def __init__(self, obj: Any, source: Source, current: Value, step: Value):
        self.source = source
        self.obj = obj
        self.current, self.step = current, step
        self.taken = 0

    def python_type(self) -> type:
        return itertools.count

    def next(self, tx: TraceContext) -> Value | None:
        tx.mutations.mutated(self)
        item = self.current
        self.current = tx.binary_op("+", item, self.step)
        self.taken += 1
        return item

    def calls_to_replay(self) -> list[tuple[Callable[..., Any], tuple[Value, ...]]]:
        """Take the numbers of the real one that the program has taken."""
        return [(_take, (Constant(self.taken),))]


def _take(counter: Any, taken: int) -> None:
    for _ in range(taken):
        next(counter)


def wrap_count(tx: TraceContext, obj: Any, source: Source) -> Value:
    """The Value of an outside count. Of one of floats only the class is known."""
    tx.guards.add(source, "type_is", itertools.count)
    state = _state(obj)
    if state is None:
        return ObjectValue(itertools.count, obj, source)
    place = ApplySource(source, _next_number)
    is_symbol = is_small_integer(state[0])  # whoever takes a number makes it another one
    current = tx.symbols.integer(tx, state[0], place) if is_symbol else tx.wrap(state[0], place)
    return OutsideCount(obj, source, current, tx.wrap(state[1], ApplySource(source, _step)))
