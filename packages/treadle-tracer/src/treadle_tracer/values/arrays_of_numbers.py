"""Arrays of NumPy that the graph makes of Python's numbers, some of which are symbols.

np.mean([a, b, 1.0])       # floats that differ from call to call, such as losses: a tensor of the graph
np.prod([h, w])            # sizes: constants, because programs make shapes of such arrays
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.by_identity import is_one_of
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.arrays import ArrayValue, in_graph, numpy_module, torch_dtype
from treadle_tracer.values.base import Constant, LazyValue
from treadle_tracer.values.numpy_numbers import NumpyNumber
from treadle_tracer.values.sequences import ListValue, Sequence
from treadle_tracer.values.tensor import SymbolicValue, TensorValue
from treadle_tracer.values.unbacked import is_unbacked

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext, Value

_MOST_NUMBERS = 256  # each is a call of the graph


def has_changing_numbers(tx: TraceContext, value: Value) -> bool:
    """Whether the value is, or holds, a number that the graph is to put into an array: a float that is a symbol, or a number that is known
    only when the graph runs."""
    value = value.force(tx) if isinstance(value, LazyValue) else value
    if isinstance(value, Sequence):
        return any(has_changing_numbers(tx, item) for item in value.items)
    if isinstance(value, NumpyNumber):
        return value.obj.dtype.name == "float64"
    return isinstance(value, SymbolicValue) and (value.python_type() is float or is_unbacked(tx, value))


def array_of_numbers(tx: TraceContext, items: list[Value]) -> ArrayValue:
    """`np.asarray(items)` of numbers, in memory of its own."""
    if len(items) > _MOST_NUMBERS:
        raise Unsupported("numpy", f"an array of {len(items)} numbers that differ from call to call")
    pairs = [_example_and_number(item) for item in items]
    dtype = torch_dtype(numpy_module().asarray([example for example, _ in pairs]).dtype)
    made: list[Value] = [_zero_dimensional(tx, number, dtype) for _, number in pairs]
    return ArrayValue(in_graph(tx, torch.stack, ListValue(made)))


def array_of_number(tx: TraceContext, item: Value) -> ArrayValue:
    """`np.asarray(item)` of one number: an array without dimensions."""
    example, number = _example_and_number(item)
    return ArrayValue(_zero_dimensional(tx, number, torch_dtype(numpy_module().asarray(example).dtype)))


def _zero_dimensional(tx: TraceContext, number: Value, dtype: torch.dtype) -> TensorValue:
    return in_graph(tx, torch.full, (), number, dtype=dtype, device="cpu")


def _example_and_number(item: Value) -> tuple[Any, Value]:
    """A number of the item's type, and the item as a number of Python's."""
    if isinstance(item, NumpyNumber):
        return item.obj, item.number
    if isinstance(item, SymbolicValue):
        return item.python_type()(), item
    if isinstance(item, Constant) and is_one_of(type(item.obj), (bool, int, float)):
        return item.obj, item
    raise Unsupported("numpy", f"an array of {item.describe()}")


__all__ = ["array_of_number", "array_of_numbers", "has_changing_numbers"]
