"""Immutable objects of types implemented in C whose methods are called while tracing: dates, decimals, patterns, getters.

A method is called only if this table says that its result follows from the object's value and the arguments. The object is then guarded
by that value. Everything else that is implemented in C is left to Python.
"""

from __future__ import annotations

import datetime
import decimal
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from treadle_tracer.by_identity import IdentityDict
from treadle_tracer.values.value import NotConstant, Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_COMPARISONS = "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ "


@dataclass(frozen=True)
class NativeType:
    """pure: names of methods whose results follow from the values alone; key: object -> what tells it from all others, None: identity."""

    pure: frozenset[str]
    key: Callable[[Any], Any] | None = None


def _type(pure: str, key: Callable[[Any], Any] | None = None) -> NativeType:
    return NativeType(frozenset(pure.split()), key)


_DATE = "weekday isoweekday isocalendar isoformat toordinal ctime __add__ __radd__ __sub__ __rsub__ " + _COMPARISONS
_NATIVE_TYPES: IdentityDict[type, NativeType] = IdentityDict(
    {
        datetime.date: _type(_DATE, repr),
        # Of times with a time zone, methods may run Python code of the zone.
        datetime.datetime: _type(
            "date time weekday isoweekday isocalendar toordinal", lambda d: (repr(d.replace(tzinfo=None)), d.fold)
        ),
        datetime.timedelta: _type(
            "total_seconds __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __floordiv__ __mod__ __neg__ __abs__ __bool__ "
            + _COMPARISONS,
            repr,
        ),
        # Arithmetic and comparisons with NaN depend on the thread's context.
        decimal.Decimal: _type(
            "as_tuple is_nan is_finite is_infinite is_signed is_zero __int__ __float__ __bool__ __eq__ __ne__ __hash__",
            decimal.Decimal.as_tuple,
        ),
        re.Pattern: _type(
            "match search fullmatch findall split sub subn __eq__ __hash__", lambda p: (p.pattern, p.flags)
        ),
        re.Match: _type("group groups groupdict start end span expand __getitem__ __bool__"),
        operator.itemgetter: _type("__call__"),
    }
)


class _SameValue:
    """Guard callable: an object of the type with the recorded value."""

    __slots__ = ("key", "kind", "native")
    compares_by_value = True

    def __init__(self, obj: Any, native: NativeType):
        assert native.key is not None
        self.kind, self.native, self.key = type(obj), native, native.key(obj)

    def __call__(self, value: Any) -> bool:
        assert self.native.key is not None
        return type(value) is self.kind and self.native.key(value) == self.key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SameValue) and (self.kind, self.key) == (other.kind, other.key)

    def __hash__(self) -> int:
        return hash(self.kind)


def native_constant(tx: TraceContext, value: Value) -> Any:
    """The object of a value of such a type, guarded by its value. Raises NotConstant for every other value."""
    obj = getattr(value, "obj", None)
    native = _NATIVE_TYPES.get(type(obj))
    if native is None or value.source is None:
        raise NotConstant(value)
    if native.key is None:
        tx.guards.add(value.source, "is", obj)
    else:
        tx.guards.add(value.source, "call", _SameValue(obj, native), f"{value.source.text} == {obj!r}")
    return obj


def call_native(tx: TraceContext, owner: Value, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """A pure method of such an object, called now; None where the method is none of those, or an argument is no constant."""
    native = _NATIVE_TYPES.get(type(getattr(owner, "obj", None)))
    if native is None or name not in native.pure:
        return None
    try:
        plain = [_plain(tx, arg) for arg in args]
        named = {key: _plain(tx, arg) for key, arg in kwargs.items()}
    except NotConstant:
        return None
    try:
        result = getattr(native_constant(tx, owner), name)(*plain, **named)
    except Exception as error:
        tx.raise_real(error)
    return tx.from_constant(result)


def _plain(tx: TraceContext, value: Value) -> Any:
    return value.constant() if value.is_constant() else native_constant(tx, value)
