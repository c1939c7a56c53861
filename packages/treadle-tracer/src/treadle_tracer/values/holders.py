"""What the variables of the program hold, as far as the trace knows it: objects that are surely alive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from treadle_tracer.values.base import settled
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.sequences import Sequence
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

# So many objects are looked at.
_MOST = 10_000


def is_held(tx: TraceContext, target: Value) -> bool:
    """Whether a variable refers to an object, or to one that does: through attributes, items and entries. False where that is not known."""
    pending = [value for frame in tx.frames for value in frame.named_locals().values()]
    seen: set[int] = set()
    while pending and len(seen) < _MOST:
        value = settled(pending.pop())
        if value is target:
            return True
        if id(value) not in seen:
            seen.add(id(value))
            pending += _referents(tx, value)
    return False


def _referents(tx: TraceContext, value: Value) -> Iterator[Value]:
    if isinstance(value, ObjectValue):
        yield from (item for item in tx.mutations.attrs_of(value).values() if isinstance(item, Value))
        if isinstance(value.container, Value):
            yield value.container
    elif isinstance(value, DictValue):
        for key, item in value.entries.values():
            yield from (key, item)
    elif isinstance(value, Sequence):
        yield from (item for item in value.items if isinstance(item, Value))


__all__ = ["is_held"]
