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

    A dict or set that leaves the trace is filled by Python, which hashes and compares once more, so neither may have effects, but that an
    object made in the trace may keep its hash. Raises Unsupported where they have, and where the hash is not known.

    is_outside  the object is from outside: in an outside container it has the hash of an earlier time
    """

    __slots__ = ("_hash", "_state", "_tx", "_value", "is_outside")

    def __init__(self, tx: TraceContext, value: Value, is_outside: bool = False):
        self._tx, self._value, self.is_outside = tx, value, is_outside
        before = tx.mutations.snapshot()
        self._hash = hash_result(tx, call_special(tx, value, "__hash__", []))
        check_unchanged(tx, before, value, but_own=not is_outside)
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
        check_unchanged(self._tx, before, self._value)
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


def is_of_earlier_time(hashed: Any) -> bool:
    """Whether an outside container has hashed this key, or an item of it, by code of the program."""
    if type(hashed) is tuple:
        return any(map(is_of_earlier_time, hashed))
    return isinstance(hashed, KeyByEquality) and hashed.is_outside


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


def check_unchanged(tx: TraceContext, before: Any, value: Value, but_own: bool = False) -> None:
    """Raise Unsupported where the `__hash__` or `__eq__` of an object has written anything since the snapshot `before`; `but_own`: anything
    but attributes of the object itself."""
    after = tx.mutations.snapshot()
    if but_own and tx.mutations.attrs_of(value):
        (attributes, *others), (attributes_before, *others_before) = after, before
        own = attributes_before.get(id(value), {})
        after = ({**attributes, id(value): own}, *others)
        before = ({**attributes_before, id(value): own}, *others_before)
    if after != before:
        raise Unsupported("hash", f"{value.describe()}, whose __hash__ or __eq__ has effects")
