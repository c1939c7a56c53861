"""Lists, tuples and dicts of exactly these classes, for those who go through what they hold."""

from __future__ import annotations

from treadle_tracer.by_identity import is_one_of
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.sequences import Sequence
from treadle_tracer.values.value import Value

DEEPEST = 50
"""So deep nothing is followed: it may contain itself."""


def members_of(value: Value) -> list[Value] | None:
    """Keys and items of a plain container, in order; None for other values."""
    if isinstance(value, DictValue) and is_one_of(value.cls, (dict,)):
        return [part for entry in value.entries.values() for part in entry]
    return list(value.items) if isinstance(value, Sequence) and is_one_of(value.cls, (list, tuple)) else None
