"""Immutable objects of types implemented in C whose methods are called while tracing: dates, decimals, patterns, getters.

A method is called only if this table says that its result follows from the object's value and the arguments. The object is then guarded
by that value. Everything else that is implemented in C is left to Python.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from treadle_tracer.by_identity import IdentityDict
from treadle_tracer.errors import Unsupported
from treadle_tracer.guard_callables import GuardCallable
from treadle_tracer.source import ConstSource
from treadle_tracer.values.plain_arguments import plain_arguments
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


_DATE = (
    "__str__ __repr__ weekday isoweekday isocalendar isoformat toordinal ctime __add__ __radd__ __sub__ __rsub__ "
    + _COMPARISONS
)
_NATIVE_TYPES: IdentityDict[type, NativeType] = IdentityDict(
    {
        datetime.date: _type(_DATE, repr),
        # Of times with a time zone, methods may run Python code of the zone: see `_is_zoned`.
        datetime.datetime: _type(
            "date time weekday isoweekday isocalendar toordinal __str__ __repr__ isoformat replace __add__ __radd__ __sub__ __rsub__ "
            + _COMPARISONS,
            lambda d: (repr(d.replace(tzinfo=None)), d.fold, d.tzinfo is None),
        ),
        datetime.timedelta: _type(
            "total_seconds __str__ __repr__ "
            "__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __floordiv__ __mod__ __neg__ __abs__ __bool__ "
            + _COMPARISONS,
            repr,
        ),
        # Guarded where the thread's context has a part in it: see `_result`.
        decimal.Decimal: _type(
            "as_tuple is_nan is_finite is_infinite is_signed is_zero __int__ __float__ __bool__ adjusted as_integer_ratio copy_abs "
            "copy_negate copy_sign compare quantize normalize to_integral_value sqrt __add__ __radd__ __sub__ __rsub__ __mul__ "
            "__rmul__ __truediv__ __rtruediv__ __floordiv__ __rfloordiv__ __mod__ __rmod__ __neg__ __pos__ __abs__ __round__ "
            "__trunc__ __floor__ __ceil__ " + _COMPARISONS,
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
    if name in ("sub", "subn"):
        found = _substituted(tx, owner, name, args, kwargs)
        if found is not None:
            return found
    try:
        plain = [_plain(tx, arg) for arg in args]
        named = {key: _plain(tx, arg) for key, arg in kwargs.items()}
    except NotConstant:
        return None
    if name not in _DATE_PARTS and any(map(_is_zoned, (owner.obj, *plain, *named.values()))):  # type: ignore[attr-defined]
        return None
    return tx.from_constant(_result(tx, getattr(native_constant(tx, owner), name), plain, named))


_DATE_PARTS = frozenset("date time weekday isoweekday isocalendar toordinal".split())


def _is_zoned(obj: Any) -> bool:
    return isinstance(obj, (datetime.datetime, datetime.time)) and obj.tzinfo is not None


NATIVE_CLASSES = (datetime.date, datetime.datetime, datetime.timedelta, decimal.Decimal)
"""Classes whose instances follow from constant arguments."""


def _substituted(
    tx: TraceContext, owner: Value, name: str, args: list[Value], kwargs: dict[str, Value]
) -> Value | None:
    """`pattern.sub(function, text)`, the function being called with each match; None where that is no function."""
    given = dict(zip(("repl", "string", "count"), args, strict=False)) | kwargs
    if given.keys() - {"repl", "string", "count"} or "repl" not in given or given["repl"].is_constant():
        return None
    try:
        pattern = native_constant(tx, owner)
        rest = {key: value.constant() for key, value in given.items() if key != "repl"}
    except NotConstant:
        return None
    if type(rest.get("string")) is not str or type(rest.get("count", 0)) is not int:
        return None
    matches: list[re.Match[str]] = []
    pattern.sub(lambda match: matches.append(match) or "", **rest)
    texts = [given["repl"].call(tx, [tx.from_constant(match)], {}) for match in matches]
    if not all(text.is_constant() and type(text.constant()) is str for text in texts):
        raise Unsupported("builtin-method", f"re.Pattern.{name} by a function whose text is not known")
    found = iter([text.constant() for text in texts])
    return tx.from_constant(getattr(pattern, name)(lambda match: next(found), **rest))


def made_native(cls: Any) -> Callable[[TraceContext, list[Value], dict[str, Value]], Value]:
    """What a call of such a class makes."""

    def make(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        plain, named = plain_arguments(args, kwargs, functools.partial(_plain, tx))
        return tx.from_constant(_result(tx, cls, plain, named))

    return make


def _result(tx: TraceContext, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """A result that follows from the arguments. Of decimals, where the thread's context has no part in it."""
    before = decimal.getcontext()
    context = before.copy()
    context.clear_flags()
    error = None
    with decimal.localcontext(context) as asked:
        try:
            result = function(*args, **kwargs)
        except Exception as raised:
            result, error = None, raised
        if any(asked.flags.values()):
            raise Unsupported("builtin-call", "a decimal number that has been rounded, or is none")
    if error is not None:
        tx.raise_real(error)
    if type(result) is decimal.Decimal:
        tx.guards.add(
            ConstSource(decimal),
            "call",
            _SameContext(_limits(before)),
            "the context of decimals has the same precision",
        )
    return result


class _SameContext(GuardCallable):
    """The thread's context of decimals has the recorded precision and limits."""

    __slots__ = ()

    def __call__(self, module: Any) -> bool:
        return _limits(decimal.getcontext()) == self.question


def _limits(context: decimal.Context) -> tuple[int, ...]:
    return context.prec, context.Emin, context.Emax, context.clamp


def _plain(tx: TraceContext, value: Value) -> Any:
    return value.constant() if value.is_constant() else native_constant(tx, value)
