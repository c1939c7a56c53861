"""`int`, `float` and `complex` of values."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from treadle_tracer.class_facts import is_subtype
from treadle_tracer.errors import Unsupported
from treadle_tracer.values import numpy_numbers, tensor_numbers
from treadle_tracer.values.arrays import ArrayValue
from treadle_tracer.values.base import Constant
from treadle_tracer.values.class_lookup import MISSING, has_special, lookup
from treadle_tracer.values.constant_objects import ConstantObject, has_python_method
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.symbolic_arithmetic import convert
from treadle_tracer.values.tensor import SymbolicValue, TensorValue
from treadle_tracer.values.value import Value, call_special

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


def number_constructor(cls: type) -> Callable[[TraceContext, list[Value], dict[str, Value]], Value]:
    """`int(...)`, `float(...)` or `complex(...)`."""
    special = {int: "__int__", float: "__float__", complex: "__complex__"}[cls]

    def make(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if len(args) == 1 and not kwargs:
            (value,) = args if cls is complex else numpy_numbers.plain_numbers(args)
            if isinstance(value, ArrayValue) and value.ndim == 0:
                value = value.tensor
            if isinstance(value, TensorValue):
                return tensor_numbers.to_number(tx, value, cls)
            if isinstance(value, SymbolicValue):
                return value if cls is value.python_type() else convert(tx, value, cls)
            if isinstance(value, ObjectValue) or has_python_method(tx, value, (special, "__index__")):
                return _of_object(tx, cls, special, value)
            if isinstance(value, ConstantObject) and is_subtype(value.python_type(), cls):
                return Constant(getattr(cls, special)(value.obj))
        return tx.fold(cls, args, kwargs)

    return make


def _of_object(tx: TraceContext, cls: type, special: str, value: Value) -> Value:
    """What the special method of an object gives. Raises Unsupported where Python converts that, or refuses it."""
    name = special if lookup(tx, value.python_type(), special) is not MISSING else "__index__"
    if not has_special(tx, value.python_type(), name):
        raise Unsupported("raises", f"{cls.__name__} of {value.describe()}")
    found = call_special(tx, value, name, [])
    if found.python_type() is not cls:
        raise Unsupported("raises", f"{cls.__name__} of {value.describe()}, whose {name} gives another type")
    return found
