"""NumPy's reductions of Python's integers: `np.prod(x.shape[1:])`, `np.max([a.shape[0], b.shape[0]])`.

Programs make shapes of what these give. Constants give a constant, and symbols a scalar whose number is a symbol: what an array of the
graph gives is known only when the graph runs.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.by_identity import is_one_of
from treadle_tracer.values.base import Constant, LazyValue
from treadle_tracer.values.constants import is_numpy_scalar
from treadle_tracer.values.numpy_numbers import NumpyNumber, plain_numbers, scalar_of
from treadle_tracer.values.sequences import Sequence
from treadle_tracer.values.tensor import SymbolicValue
from treadle_tracer.values.unbacked import is_unbacked

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext, Value


def _by_operator(text: str) -> Callable[[TraceContext, list[Value]], Value]:
    return lambda tx, numbers: functools.reduce(functools.partial(tx.binary_op, text), numbers)


def _by_builtin(function: Callable[..., Any]) -> Callable[[TraceContext, list[Value]], Value]:
    return lambda tx, numbers: tx.wrap_known(function).call(tx, numbers, {}) if len(numbers) > 1 else numbers[0]


_REDUCTIONS = {"prod": _by_operator("*"), "sum": _by_operator("+"), "max": _by_builtin(max), "min": _by_builtin(min)}


def reduced(tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """What NumPy's function of this name gives for a list or tuple of integers; None where it is no reduction, or the arguments others."""
    reduce = _REDUCTIONS.get(name)
    numbers = _integers(tx, args[0]) if reduce is not None and len(args) == 1 and not kwargs else None
    if reduce is None or not numbers:
        return None
    number = reduce(tx, plain_numbers(numbers))
    if isinstance(number, SymbolicValue):
        return scalar_of(tx, sys.modules["numpy"].int64, number)
    return Constant(sys.modules["numpy"].int64(_wrapped(number.constant())))


def _integers(tx: TraceContext, value: Value) -> list[Value] | None:
    """The items of a list or tuple of integers that NumPy computes in 64 bits; None for all else."""
    value = value.force(tx) if isinstance(value, LazyValue) else value
    if not isinstance(value, Sequence) or not is_one_of(value.python_type(), (list, tuple, torch.Size)):
        return None
    items = [item.force(tx) if isinstance(item, LazyValue) else item for item in value.items]
    return items if all(_is_integer(tx, item) for item in items) else None


def _is_integer(tx: TraceContext, item: Value) -> bool:
    if isinstance(item, NumpyNumber):
        return type(item.obj).__name__ == "int64"
    if isinstance(item, SymbolicValue):
        return item.python_type() is int and not is_unbacked(tx, item)
    if not isinstance(item, Constant):
        return False
    if is_numpy_scalar(item.obj):
        return type(item.obj).__name__ == "int64"
    return type(item.obj) is int and item.obj == _wrapped(item.obj)


def _wrapped(number: int) -> int:
    """A number modulo 2**64, as arithmetic in 64 bits without warnings gives it."""
    return (number + 2**63) % 2**64 - 2**63
