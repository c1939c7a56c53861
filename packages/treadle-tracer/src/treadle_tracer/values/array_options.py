"""Options in calls of NumPy: constants, dtypes, shapes."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.arrays import numpy_module
from treadle_tracer.values.base import Constant, LazyValue, is_none, settled
from treadle_tracer.values.numpy_numbers import NumpyNumber
from treadle_tracer.values.sequences import Sequence, TupleValue
from treadle_tracer.values.tensor import SymbolicValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

# ---- arguments


def plain(value: Value | None, default: Any = None) -> Any:
    """A constant argument as an object."""
    if value is None:
        return default
    value = settled(value)
    if not value.is_constant():
        raise Unsupported("numpy", f"{value.describe()} as an option")
    return value.constant()


def copy_option(value: Value | None) -> bool | None:
    """The option `copy` of `numpy.array`: whether memory is copied; None where it is only if it has to be."""
    given = plain(value, True)
    modes = getattr(numpy_module(), "_CopyMode", None)  # the truth of one of its members is an error
    return None if given is None or (modes is not None and given is modes.IF_NEEDED) else bool(given)


def dtype_option(value: Value | None, default: Any = None) -> Any:
    """A dtype of NumPy; `default` where the argument is missing or None. Raises Unsupported for what is no dtype."""
    found = plain(value)
    try:
        return default if found is None else numpy_module().dtype(found)
    except TypeError as error:
        raise Unsupported("numpy", str(error)) from None


def index_option(value: Value) -> int:
    """A whole number. Raises Unsupported for anything else, of which NumPy raises TypeError."""
    try:
        return operator.index(plain(value))
    except TypeError as error:
        raise Unsupported("numpy", str(error)) from None


def shape_option(tx: TraceContext, value: Value) -> Value:
    """A shape as a tuple of numbers."""
    value = value.force(tx) if isinstance(value, LazyValue) else value
    items = value.unpack(tx) if isinstance(value, Sequence) else [value]
    return TupleValue([size_option(tx, one) for one in items])


def size_option(tx: TraceContext, value: Value) -> Value:
    """A size as a number: a constant or a symbol."""
    value = value.force(tx) if isinstance(value, LazyValue) else value
    if isinstance(value, NumpyNumber):
        value = value.number
    if isinstance(value, SymbolicValue) and value.python_type() is int:
        return value
    return Constant(index_option(value))


def is_c_order(order: Value | None) -> bool:
    """Whether an argument `order` leaves a new array in the order of C."""
    return plain(order, "C") in ("C", None, "K", "A")


def is_absent(value: Value | None) -> bool:
    """Whether an argument is missing or None."""
    return value is None or is_none(value)


def is_no_value(value: Value) -> bool:
    """Whether the value stands for an argument that is not given."""
    return getattr(value, "obj", None) is numpy_module()._NoValue


def takes(apply: Callable[..., Any], args: list[Value], kwargs: dict[str, Value]) -> bool:
    """Whether `apply(tx, *args, **kwargs)` has the right form."""
    try:
        inspect.signature(apply).bind(None, *args, **kwargs)
    except TypeError:
        return False
    return True
