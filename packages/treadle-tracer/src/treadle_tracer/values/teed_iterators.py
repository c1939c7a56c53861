"""`itertools.tee`: iterators that go over the items of one input, each at its own pace.

    left, right = itertools.tee(inner)     # both have one list of the items that were read so far

Where one leaves the trace, the real ones are copies of one real tee around the same input, moved on to their places.
"""

from __future__ import annotations

import copy
import itertools
from typing import TYPE_CHECKING, Any

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import Constant
from treadle_tracer.values.class_lookup import MISSING, lookup
from treadle_tracer.values.iteration import IteratorValue, advanced
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

TEE: Any = type(itertools.tee(())[0])


class TeeSource(Value):
    """What the iterators of one call of `tee` share: the input and the items that have been read of it. Leaves the trace as a real tee."""

    __slots__ = ("inner", "seen")

    def __init__(self, inner: Value):
        self.source = None
        self.inner = inner
        self.seen: list[Value] = []

    def python_type(self) -> type:
        return TEE

    def item(self, tx: TraceContext, position: int) -> Value | None:
        """The item at a position that is at most one behind those read so far; None at the end."""
        if position < len(self.seen):
            return self.seen[position]
        item = self.inner.next(tx)
        if item is not None:
            self.seen.append(item)
        return item

    def reconstruct(self, cg: Any) -> None:
        cg.call_const(_tee_after, self.inner, *self.seen)


def _tee_after(inner: Any, *seen: Any) -> Any:
    return itertools.tee(itertools.chain(seen, inner), 1)[0]


class TeeIterator(IteratorValue):
    """One of the iterators."""

    __slots__ = ("position", "shared")

    def __init__(self, shared: TeeSource, position: int = 0):
        self.source = None
        self.shared = shared
        self.position = position

    def python_type(self) -> type:
        return TEE

    def next(self, tx: TraceContext) -> Value | None:
        item = self.shared.item(tx, self.position)
        self.position += item is not None
        return item

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__copy__":
            return TeeIterator(self.shared, self.position)
        return super().builtin_method(tx, name, args, kwargs)

    def reconstruct(self, cg: Any) -> None:
        cg.call_const(_branch_at, self.shared, Constant(self.position))


def _branch_at(shared: Any, position: int) -> Any:
    return advanced(copy.copy(shared), position)


def tee(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`itertools.tee(iterable, n=2)`"""
    count = args[1].as_index(tx) if len(args) > 1 else 2
    if count < 0:
        tx.raise_exception(ValueError, "n must be >= 0")
    if not count:
        return TupleValue(())
    inner = args[0].iterate(tx)
    if lookup(tx, inner.python_type(), "__copy__") is not MISSING:
        raise Unsupported("builtin-call", f"itertools.tee of a {inner.python_type().__name__}, which it copies")
    shared = TeeSource(inner)
    return TupleValue([TeeIterator(shared) for _ in range(count)])
