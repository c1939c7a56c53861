"""Questions of the program about identity: `is`, whose answer is not known of equal numbers and strings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle_tracer.by_identity import is_one_of
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import DictKeySource
from treadle_tracer.values.base import Constant, boolean, is_none
from treadle_tracer.values.constant_objects import ConstantObject
from treadle_tracer.values.constants import may_be_another
from treadle_tracer.values.history_nodes import HistoryNode
from treadle_tracer.values.joined import is_same
from treadle_tracer.values.numpy_numbers import NumpyNumber
from treadle_tracer.values.sequences import Sequence, TupleValue
from treadle_tracer.values.tensor import SymbolicValue

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext, Value


def identity(tx: TraceContext, a: Value, b: Value) -> Value:
    """`a is b` as a value: of bools that only the graph knows, a bool of the graph. Raises Unsupported as `is_identical`."""
    if _is_bool_of_graph(a, b):
        return tx.compare("==", a, b)
    return boolean(is_identical(tx, a, b))


def is_identical(tx: TraceContext, a: Value, b: Value) -> bool:
    """`a is b`, asked by the program itself. Raises Unsupported where the answer is not known: equal numbers or strings may be one
    object or two."""
    if isinstance(a, ConstantObject) and isinstance(b, ConstantObject):
        return a.obj is b.obj
    if isinstance(a, HistoryNode) or isinstance(b, HistoryNode):
        if a is not b and not (is_none(a) or is_none(b)):
            raise Unsupported("tensor-attribute", f"{a.describe()} is {b.describe()}")
        return a is b
    if _is_bool_of_graph(a, b):
        return tx.compare("==", a, b).truth(tx)
    kind = a.python_type()
    if a is b or kind is not b.python_type():
        return is_same(tx, a, b)
    if is_one_of(kind, (tuple,)) and isinstance(a, Sequence) and isinstance(b, Sequence) and not (a.items and b.items):
        return not a.items and not b.items  # there is one empty tuple
    if _is_key(a) or _is_key(b):
        if tx.compare("==", a, b).truth(tx):
            raise Unsupported("identity-of-equals", f"{a.describe()} is {b.describe()}")
        return False
    if _is_only_one(a) or _is_only_one(b):
        return tx.compare("==", a, b).truth(tx)
    if _is_shared_at_will(a) and _is_shared_at_will(b):
        if not tx.compare("==", a, b).truth(tx):
            return False
        question = f"{a.describe()} is {b.describe()}"
        if a.source is None and b.source is None:
            raise Unsupported("identity-of-made", question)
        raise Unsupported("identity-of-equals", question)
    return is_same(tx, a, b)


def _is_bool_of_graph(a: Value, b: Value) -> bool:
    """Whether two bools are compared of which the graph computes one. Python has one True and one False."""
    return (isinstance(a, SymbolicValue) or isinstance(b, SymbolicValue)) and a.python_type() is b.python_type() is bool


def _is_key(value: Value) -> bool:
    """Whether this is a tuple among the keys of a dict. Such keys are guarded to be equal."""
    return isinstance(value, TupleValue) and isinstance(value.source, DictKeySource)


def _is_only_one(value: Value) -> bool:
    """Whether Python has no other object that is equal to this number or string."""
    return (
        isinstance(value, Constant) and is_one_of(type(value.obj), (int, str, bytes)) and not may_be_another(value.obj)
    )


def _is_shared_at_will(value: Value) -> bool:
    """Whether equal values of this kind may or may not be one object: results of cached functions are, for equal arguments."""
    if value.is_from_cache:
        return True
    if isinstance(value, TupleValue):
        return value.source is None and value.cls is tuple and all(item.is_constant() for item in value.items)
    if isinstance(value, (SymbolicValue, NumpyNumber)):
        return value.python_type() is not bool
    return isinstance(value, Constant) and may_be_another(value.obj)
