"""Values as text: `str`, `repr`, `format`."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import Constant, Value
from treadle_tracer.values.objects import ObjectValue, lookup
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.tensor import SymbolicValue, TensorValue

if TYPE_CHECKING:
    from treadle_tracer.trace.tracer import Tracer


def to_str(tx: Tracer, value: Value) -> Value:
    """`str(value)`."""
    return _text(tx, value, "__str__", str)


def to_repr(tx: Tracer, value: Value) -> Value:
    """`repr(value)`."""
    return _text(tx, value, "__repr__", repr)


def _text(tx: Tracer, value: Value, name: str, function: Callable[[Any], str]) -> Value:
    if isinstance(value, (ObjectValue, TensorValue)):
        raw = lookup(tx, value.python_type(), name)
        if raw is object.__str__:
            return _text(tx, value, "__repr__", repr)
        if isinstance(raw, types.FunctionType) and not isinstance(value, TensorValue):
            return tx.inline(tx.wrap_function(raw), [value], {})
        if isinstance(value, ObjectValue) and issubclass(value.cls, BaseException) and name == "__str__":
            return _exception_text(tx, value)
        raise Unsupported("format", value.describe())
    try:
        return tx.fold(function, [value], {})
    except Unsupported:
        raise Unsupported("format", value.describe()) from None


def _exception_text(tx: Tracer, value: ObjectValue) -> Value:
    args = tx.get_attr(value, "args").unpack(tx)
    if not args:
        return Constant("")
    if len(args) > 1:
        return to_str(tx, TupleValue(args))
    return to_repr(tx, args[0]) if issubclass(value.cls, KeyError) else to_str(tx, args[0])


def format_value(tx: Tracer, value: Value, spec: Value) -> Value:
    """`format(value, spec)`."""
    if isinstance(value, SymbolicValue):
        value = Constant(tx.specialise(value))
    if spec.constant() == "" and not isinstance(value, Constant):
        return to_str(tx, value)
    if isinstance(value, ObjectValue):
        return tx.call_special(value, "__format__", [spec])
    try:
        return tx.fold(format, [value, spec], {})
    except Unsupported:
        raise Unsupported("format", value.describe()) from None
