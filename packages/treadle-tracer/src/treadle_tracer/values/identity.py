"""Questions of the program about identity: `is`, whose answer is not known of equal numbers and strings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import Constant
from treadle_tracer.values.constant_objects import ConstantObject
from treadle_tracer.values.constants import may_be_another
from treadle_tracer.values.joined import is_same
from treadle_tracer.values.numpy_numbers import NumpyNumber
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.tensor import SymbolicValue

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext, Value


def is_identical(tx: TraceContext, a: Value, b: Value) -> bool:
    """`a is b`, asked by the program itself. Raises Unsupported where the answer is not known: equal numbers or strings may be one
    object or two."""
    if isinstance(a, ConstantObject) and isinstance(b, ConstantObject):
        return a.obj is b.obj
    kind = a.python_type()
    if a is not b and kind is b.python_type() and _is_shared_at_will(a) and _is_shared_at_will(b):
        if tx.compare("==", a, b).truth(tx):
            raise Unsupported("identity-of-equals", f"{a.describe()} is {b.describe()}")
        return False
    return is_same(tx, a, b)


def _is_shared_at_will(value: Value) -> bool:
    """Whether equal values of this kind may or may not be one object: results of cached functions are, for equal arguments."""
    if value.is_from_cache:
        return True
    if isinstance(value, TupleValue):
        return value.source is None and value.cls is tuple and all(item.is_constant() for item in value.items)
    if isinstance(value, (SymbolicValue, NumpyNumber)):
        return value.python_type() is not bool
    return isinstance(value, Constant) and may_be_another(value.obj)
