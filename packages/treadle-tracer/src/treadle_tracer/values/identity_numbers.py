"""`id(obj)`. The number is rarely asked for itself: it is a key, or it is compared with others of its kind.

    seen = {id(node)}
    if id(child) not in seen:      # asks which objects are there, not where they stand in memory
        ...

Numbers that leave the trace are those of the objects that leave it. Whatever else is asked of the number of an outside object guards
which object it is; of what the trace has made it breaks the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import ConcreteValue, Constant, LazyValue
from treadle_tracer.values.constant_objects import ConstantObject
from treadle_tracer.values.constants import may_be_another
from treadle_tracer.values.functions import BoundMethod, FunctionValue
from treadle_tracer.values.made_natives import NativeObject
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.outside_identity import IdentityNumber, KnownIdentityNumber, OutsideIdentityNumber
from treadle_tracer.values.sequences import ListValue, TupleValue
from treadle_tracer.values.sets import SetValue
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


IDENTITY_NUMBERS = (IdentityNumber, KnownIdentityNumber, OutsideIdentityNumber)


def identity_number(tx: TraceContext, value: Value) -> Value:
    """`id(value)`, the same Value for the same object. Raises Unsupported where the identity is not known."""
    value = value.force(tx) if isinstance(value, LazyValue) else value
    key = ~id(value)  # no id of an object
    if key not in tx.wrapped:
        tx.wrapped[key] = (value, _number_of(tx, value))
    return tx.wrapped[key][1]


def _number_of(tx: TraceContext, value: Value) -> Value:
    if isinstance(value, ConcreteValue):
        return _number_of_constant(tx, value)
    if value.source is None:
        if not isinstance(value, _MADE) or value.is_from_cache or getattr(value, "obj", None) is not None:
            raise Unsupported("identity-number", value.describe())
        if isinstance(value, TupleValue) and all(item.is_constant() for item in value.items):
            raise Unsupported("identity-number", value.describe())
        value.identity()  # settles what may be one object or another
        return IdentityNumber(value)
    real = getattr(value, "obj", None)
    if real is None:
        real = next((obj for obj, known in tx.wrapped.values() if known is value), None)
    if real is None:
        raise Unsupported("identity-number", value.describe())
    return OutsideIdentityNumber(tx, value, real)


_MADE = (ObjectValue, ListValue, DictValue, SetValue, TupleValue, NativeObject, TensorValue, FunctionValue, BoundMethod)


def _number_of_constant(tx: TraceContext, value: ConcreteValue) -> Value:
    if isinstance(value, IDENTITY_NUMBERS):
        raise Unsupported("identity-number", value.describe())
    if id(value.obj) in tx.mutations.made:  # stands for an object that every call makes
        return IdentityNumber(value)
    if isinstance(value, Constant) and not isinstance(value, ConstantObject):
        if value.is_computed:
            raise Unsupported("identity-number", value.describe())
        if may_be_another(value.obj):
            return IdentityNumber(value)
    return KnownIdentityNumber(value, value.obj)
