"""What a part of the program may have changed of the objects that the trace made before it: iterators, containers, cells, instances.

    steps = iter(scales)
    checkpoint(lambda h: (h * next(steps)).tanh(), x)       eager's second run of the function gets the next scale

`Mutations` tells of what exists outside the trace. Here the parts of each object are compared with what they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from treadle_tracer.values.base import Constant, settled
from treadle_tracer.values.generators import GeneratorValue
from treadle_tracer.values.tensor import SymbolicValue, TensorValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_UNCHANGEABLE = (Constant, SymbolicValue)


class MadeState:
    """The state of all objects made so far that a function can reach. roots: the function and its arguments."""

    def __init__(self, tx: TraceContext, roots: Iterable[Value]):
        self._tx = tx
        self._parts: dict[int, tuple[Value, list[Any]]] = {}
        stored = (value for _, _, value in tx.mutations.attr_stores())
        stored_elsewhere = (value for _, _, value in tx.mutations.global_stores())
        in_cells = (value for _, value in tx.mutations.cell_stores())
        pending = [*roots, *stored, *stored_elsewhere, *in_cells, *tx.mutations.containers()]
        while pending:
            value = pending.pop()
            value = settled(value) if isinstance(value, Value) else value
            if not isinstance(value, Value) or isinstance(value, _UNCHANGEABLE) or id(value) in self._parts:
                continue
            # Of an object from outside, only what the program has stored in it was made by the trace.
            if value.source is not None and not tx.mutations.is_mutated(value):
                continue
            parts = list(self._parts_of(value))
            self._parts[id(value)] = value, parts
            pending += parts

    def changed(self) -> Value | None:
        """One of these objects that is not as it was, or None."""
        for value, before in self._parts.values():
            after = list(self._parts_of(value))
            if len(before) != len(after) or not all(map(_is_same, before, after)):
                return value
        return None

    def _parts_of(self, value: Value) -> Iterator[Any]:
        """What the value consists of: other values, and what Python compares."""
        if not isinstance(value, TensorValue):  # writes to the elements stand in the graph
            for cls in type(value).__mro__:
                for name in getattr(cls, "__slots__", ()):
                    yield from _flat(getattr(value, name, None))
        yield from self._tx.mutations.attrs_of(value).values()
        if isinstance(value, GeneratorValue):
            frame: Any = value.frame
            yield frame.pc
            for place in (frame.stack, frame.locals, frame.cells):
                yield from _flat(place)


def _is_same(before: Any, after: Any) -> bool:
    if isinstance(before, Value) and isinstance(after, Value):
        return settled(before) is settled(after)
    return before is after or (type(before) is type(after) and isinstance(before, (int, str)) and before == after)


def _flat(part: Any) -> Iterator[Any]:
    if type(part) in (list, tuple):
        for item in part:
            yield from _flat(item)
    elif type(part) is dict:
        for key, item in part.items():
            yield key
            yield from _flat(item)
    else:
        yield part


__all__ = ["MadeState"]
