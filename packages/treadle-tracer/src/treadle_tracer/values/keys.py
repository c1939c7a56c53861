"""Keys of dicts and members of sets whose classes define `__hash__` and `__eq__` in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.constants import is_constant_object
from treadle_tracer.values.value import NotConstant, Value, call_special

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


class KeyByEquality:
    """What the trace's own dicts hold in place of such an object. They ask its `__eq__` where Python's dicts do: of what has the same
    hash and is not the same object.

    A dict or set that leaves the trace is filled by Python, which hashes and compares once more, so neither may have effects. Raises
    Unsupported where they have, and where the hash is not known.
    """

    __slots__ = ("_hash", "_tx", "_value")

    def __init__(self, tx: TraceContext, value: Value):
        self._tx, self._value = tx, value
        try:
            self._hash = hash(_without_effects(tx, value, "__hash__", []).constant())
        except NotConstant:
            raise Unsupported("hash", value.describe()) from None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, KeyByEquality):
            if other._value.identity() is self._value.identity():
                return True
            other = other._value
        elif is_constant_object(other):
            other = self._tx.from_constant(other)
        if not isinstance(other, Value):
            raise Unsupported("hash", self._value.describe())
        before = self._tx.mutations.snapshot()
        equal = self._tx.compare("==", self._value, other).truth(self._tx)
        _check_unchanged(self._tx, before, self._value)
        return equal


def _without_effects(tx: TraceContext, value: Value, name: str, args: list[Value]) -> Value:
    before = tx.mutations.snapshot()
    result = call_special(tx, value, name, args)
    _check_unchanged(tx, before, value)
    return result


def _check_unchanged(tx: TraceContext, before: Any, value: Value) -> None:
    if tx.mutations.snapshot() != before:
        raise Unsupported("hash", f"{value.describe()}, whose __hash__ or __eq__ has effects")
