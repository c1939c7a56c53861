"""Values as text: `str`, `repr`, `format`."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import Constant
from treadle_tracer.values.class_lookup import lookup
from treadle_tracer.values.constant_objects import ConstantObject, has_python_method
from treadle_tracer.values.numpy_numbers import NumpyNumber
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.tensor import SymbolicValue, TensorValue
from treadle_tracer.values.value import Value, call_special

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


def to_str(tx: TraceContext, value: Value) -> Value:
    """`str(value)`."""
    return _text(tx, value, "__str__", str)


def to_repr(tx: TraceContext, value: Value) -> Value:
    """`repr(value)`."""
    return _text(tx, value, "__repr__", repr)


def _text(tx: TraceContext, value: Value, name: str, function: Callable[[Any], str]) -> Value:
    if isinstance(value, (ObjectValue, TensorValue)) or has_python_method(tx, value, (name, "__repr__")):
        raw = lookup(tx, value.python_type(), name)
        if raw is object.__str__:
            return _text(tx, value, "__repr__", repr)
        if isinstance(raw, types.FunctionType) and not isinstance(value, TensorValue):
            return tx.inline(tx.wrap_known(raw), [value], {})
        if isinstance(value, ObjectValue) and issubclass(value.cls, BaseException) and name == "__str__":
            return _exception_text(tx, value)
        raise Unsupported("format", value.describe())
    try:
        return tx.fold(function, [value], {})
    except Unsupported:
        raise Unsupported("format", value.describe()) from None


def _exception_text(tx: TraceContext, value: ObjectValue) -> Value:
    args = value.get_attr(tx, "args").unpack(tx)
    if not args:
        return Constant("")
    if len(args) > 1:
        return to_str(tx, TupleValue(args))
    return to_repr(tx, args[0]) if issubclass(value.cls, KeyError) else to_str(tx, args[0])


def format_value(tx: TraceContext, value: Value, spec: Value) -> Value:
    """`format(value, spec)`."""
    if isinstance(value, SymbolicValue):
        value = Constant(tx.specialise(value))
    elif isinstance(value, NumpyNumber):
        value = value.fixed(tx)
    own = isinstance(value, ObjectValue) and lookup(tx, value.cls, "__format__") is not object.__format__
    if spec.constant() == "" and not isinstance(value, Constant) and not own:
        return to_str(tx, value)
    if isinstance(value, ConstantObject) and has_python_method(tx, value, ("__format__", "__str__", "__repr__")):
        raw = lookup(tx, type(value.obj), "__format__")
        return tx.bind(value, raw, "__format__").call(tx, [spec], {})
    if isinstance(value, ObjectValue):
        return call_special(tx, value, "__format__", [spec])
    try:
        return tx.fold(format, [value, spec], {})
    except Unsupported:
        raise Unsupported("format", value.describe()) from None
