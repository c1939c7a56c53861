"""Keys of dicts and members of sets whose classes define `__hash__` and `__eq__` in Python."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.constants import is_constant_object
from treadle_tracer.values.sequences import Sequence
from treadle_tracer.values.value import NotConstant, Value, call_special

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext, Writes


class KeyByEquality:
    """What the trace's own dicts hold in place of such an object. They ask its `__eq__` where Python's dicts do: of what has the same
    hash and is not the same object.

    A dict or set that leaves the trace is filled by Python, which hashes and compares once more, so neither may have effects. Raises
    Unsupported where they have, and where the hash is not known.
    """

    __slots__ = ("_hash", "_state", "_tx", "_value")

    def __init__(self, tx: TraceContext, value: Value):
        self._tx, self._value = tx, value
        before = tx.mutations.snapshot()
        self._hash = hash_result(tx, call_special(tx, value, "__hash__", []))
        _check_unchanged(tx, before, value)
        self._state = _state(tx.mutations, value)

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

    def check_state(self, mutations: Writes) -> None:
        """Raise Unsupported where the object has changed since it was hashed: Python's dicts go on with the hash of that time."""
        now = _state(mutations, self._value)
        if len(now) != len(self._state) or any(a is not b for a, b in zip(now, self._state, strict=True)):
            raise Unsupported("reconstruct", f"{self._value.describe()}, a key that has changed since it was hashed")


def check_keys(hashed: Iterable[Any], mutations: Writes) -> None:
    """Raise Unsupported where one of these keys, or an item of one that is a tuple, has changed since it was hashed."""
    for key in hashed:
        if isinstance(key, KeyByEquality):
            key.check_state(mutations)
        elif type(key) is tuple:
            check_keys(key, mutations)


def asks_objects(hashed: Any) -> bool:
    """Whether Python calls code of the program to find what is stored under this hash key."""
    if type(hashed) is tuple:
        return any(map(asks_objects, hashed))
    return isinstance(hashed, KeyByEquality)


def hash_result(tx: TraceContext, found: Value) -> int:
    """The hash of an object whose `__hash__` in Python gives `found` (Objects/typeobject.c, slot_tp_hash). Raises Unsupported where that
    is not known."""
    try:
        number = found.constant()
    except NotConstant:
        raise Unsupported("hash", found.describe()) from None
    if not isinstance(number, int):
        tx.raise_exception(TypeError, "__hash__ method should return an integer")
    return hash(_Hashed(number))


class _Hashed:
    """Python itself makes a hash of the number that `__hash__` gives."""

    def __init__(self, found: int):
        self._found = found

    def __hash__(self) -> int:
        return self._found


def _state(mutations: Writes, value: Value) -> list[Any]:
    """An object and all that its attributes, and the items of those, lead to, in order."""
    found: list[Any] = []
    seen: set[int] = set()
    waiting: list[Any] = [value]
    while waiting:
        each = waiting.pop()
        outside = getattr(each, "obj", None)
        found.append(each if outside is None else outside)
        if id(found[-1]) in seen:
            continue
        seen.add(id(found[-1]))
        if isinstance(each, Value):
            waiting += mutations.attrs_of(each).values()
        if isinstance(each, Sequence):
            waiting += each.items
        elif hasattr(each, "entries"):  # a dict or a set
            waiting += [
                item for entry in each.entries.values() for item in (entry if isinstance(entry, tuple) else (entry,))
            ]
    return found


def _check_unchanged(tx: TraceContext, before: Any, value: Value) -> None:
    if tx.mutations.snapshot() != before:
        raise Unsupported("hash", f"{value.describe()}, whose __hash__ or __eq__ has effects")
