"""Which type an operator gives for operands of known types, or with which text it refuses them: asked of Python itself.

It is carried out on empty objects of the same types (`[]` for every list), where no code of the program takes part.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.by_identity import IdentitySet
from treadle_tracer.class_facts import is_made_by_statement
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.arrays import ArrayValue
from treadle_tracer.values.base import ConcreteValue, Constant
from treadle_tracer.values.class_lookup import lookup
from treadle_tracer.values.constants import is_numpy_type
from treadle_tracer.values.numpy_numbers import NumpyNumber
from treadle_tracer.values.opaque import OpaqueValue
from treadle_tracer.values.tensor import SymbolicValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_MAPPINGS: tuple[Any, ...] = ({}, collections.OrderedDict())
_OF_TYPE: dict[type, Any] = {
    bool: False,
    range: range(0),
    **{type(view): view for mapping in _MAPPINGS for view in (mapping.keys(), mapping.values(), mapping.items())},
}
_CONTAINERS = IdentitySet(
    (list, tuple, torch.Size, collections.deque, dict, collections.OrderedDict, collections.defaultdict, set, frozenset)
)
_ASKED_BY_BUILT_INS = ("__index__", "__iter__", "__len__", "__getitem__", "__str__", "__repr__", "__format__", "keys")


def result_type(
    tx: TraceContext, function: Callable[[Any, Any], Any], names: Sequence[str], a: Value, b: Value
) -> type:
    """The type of `function(a, b)`, an operator with these special methods.

    Raises TypeError in the program, with Python's text, where Python refuses the operands. Raises Unsupported where that is not known.
    """
    for operand in (a, b):
        if isinstance(operand, OpaqueValue):
            operand.refuse()
    left, right = a.python_type(), b.python_type()
    if left in _CONTAINERS and right in _CONTAINERS and (known := _of_containers(function, left, right)) is not None:
        return known
    what = f"{getattr(function, '__name__', 'operator')} of {a.describe()} and {b.describe()}"
    if is_of_program(tx, (*names, *_ASKED_BY_BUILT_INS), a, b):
        raise Unsupported("builtin-method", what)
    try:
        return type(function(_stand_in(a, what), _stand_in(b, what)))
    except Unsupported:
        raise
    except Exception as error:
        if type(error) is not TypeError:
            raise Unsupported("builtin-method", what) from None
        text = str(error)
    return tx.raise_exception(TypeError, text)


@functools.cache
def _of_containers(function: Callable[[Any, Any], Any], left: type, right: type) -> type | None:
    """The type of the result for two of Python's own containers, whose operators nobody can change; None where they are refused."""
    try:
        return type(function(left(), right()))
    except TypeError:
        return None


def is_of_program(tx: TraceContext, names: Sequence[str], *operands: Value) -> bool:
    """Whether one of these special methods of one of the operands is a Python function."""
    return any(isinstance(lookup(tx, x.python_type(), name), types.FunctionType) for x in operands for name in names)


def _stand_in(value: Value, what: str) -> Any:
    """An object of the same type."""
    cls = value.python_type()
    if isinstance(value, (NumpyNumber, ArrayValue)) or is_numpy_type(cls):
        raise Unsupported("builtin-method", what)  # NumPy's operators ask the other object what it holds
    if isinstance(value, (Constant, ConcreteValue)):
        return value.obj
    if isinstance(value, SymbolicValue):
        return cls(1)
    if cls in _OF_TYPE:
        return _OF_TYPE[cls]
    base = next(base for base in cls.__mro__ if not is_made_by_statement(base))
    try:
        made = base.__new__(cls)
    except Exception:
        raise Unsupported("builtin-method", what) from None
    if type(made) is not cls:
        raise Unsupported("builtin-method", what)
    return made
