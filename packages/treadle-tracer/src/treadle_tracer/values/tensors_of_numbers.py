"""Tensors that the graph makes of Python's numbers and scalar tensors. torch's constructors would read plain numbers.

torch.tensor(n)                   # torch.full((), n)
torch.tensor([t] * 8)             # torch.full((), t).repeat(8)
torch.tensor([[h, w], [4, 4]])    # torch.stack of stacks of such
torch.tensor([x.max(), n])        # torch.stack of scalar tensors and such
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.by_identity import is_one_of
from treadle_tracer.values.base import NONE, Constant, LazyValue, is_none
from treadle_tracer.values.floats import is_float
from treadle_tracer.values.known_elements import mark_number
from treadle_tracer.values.sequences import ListValue, TupleValue
from treadle_tracer.values.tensor import SymbolicValue, TensorValue
from treadle_tracer.values.tensors_of_scalars import converted, dtype_of, is_scalar, why_not_stacked
from treadle_tracer.values.unbacked import is_unbacked

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext, Value

_MOST_NUMBERS = 64  # each is a call of the graph

_HOLDS_INTS = (torch.int64, torch.float32, torch.float64, torch.bfloat16)
"""Dtypes that hold every symbolic int: eager raises where a number does not fit, which a graph does not ask."""

Nested = Any
"""A number or a tensor without dimensions, or a list of such."""


def tensor_of_numbers(tx: TraceContext, data: Value, options: dict[str, Value]) -> Value | None:
    """`torch.tensor(data, **options)` where a number in `data` is a symbol, or a tensor without dimensions in a list.

    None where none is, and where the graph would not hold what eager's constructor makes of it.
    """
    if not options.keys() <= {"dtype", "device"}:
        return None
    nested = _numbers_in(tx, data)
    numbers = [] if nested is None else _flat(nested)
    if not any(isinstance(number, (SymbolicValue, TensorValue)) for number in numbers):
        return None
    dtype = options.get("dtype", NONE).constant() or dtype_of(numbers)
    scalars = [number for number in numbers if isinstance(number, TensorValue)]
    numbers = [number for number in numbers if not isinstance(number, TensorValue)]
    if scalars:
        device = torch.device(options.get("device", NONE).constant() or "cpu")
        if not isinstance(nested, list) or why_not_stacked(tx, scalars, dtype, device) is not None:
            return None
        if dtype not in _HOLDS_INTS and any(number.python_type() is not bool for number in numbers):
            return None
    changing = [n for n in numbers if is_float(n) or is_unbacked(tx, n)]
    if not scalars and not changing and dtype not in _HOLDS_INTS:
        return None
    options = {**options, "dtype": Constant(dtype)}
    if len(numbers) > 1 and not scalars and len({id(number) for number in numbers}) == 1:
        return tx.run_in_graph("call_method", "repeat", [_full(tx, numbers[0], options), *_shape(nested)], {})
    if len(numbers) > _MOST_NUMBERS and not changing:
        return None
    return _stacked(tx, nested, options)


def new_tensor(tx: TraceContext, owner: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """`owner.new_tensor(data, **kwargs)`, as `tensor_of_numbers`: of the owner's dtype and device unless others are given."""
    given = {name: value for name, value in kwargs.items() if not is_none(value)}
    own = {"dtype": Constant(owner.fake.dtype), "device": Constant(owner.fake.device)}
    return tensor_of_numbers(tx, args[0], {**own, **given}) if len(args) == 1 else None


def _numbers_in(tx: TraceContext, value: Value) -> Nested | None:
    """The numbers and scalar tensors of nested lists and tuples of equal lengths. None for anything else."""
    value = value.force(tx) if isinstance(value, LazyValue) else value
    if isinstance(value, (ListValue, TupleValue)):
        parts = [_numbers_in(tx, item) for item in value.unpack(tx)]
        shapes = {tuple(size.constant() for size in _shape(part)) for part in parts if part is not None}
        return None if None in parts or len(shapes) != 1 else parts
    is_plain = isinstance(value, Constant) and is_one_of(type(value.obj), (bool, int, float))
    return value if is_plain or isinstance(value, SymbolicValue) or is_scalar(value) else None


def _shape(nested: Nested) -> list[Constant]:
    return [Constant(len(nested)), *_shape(nested[0])] if isinstance(nested, list) else []


def _flat(nested: Nested) -> list[Value]:
    return [number for part in nested for number in _flat(part)] if isinstance(nested, list) else [nested]


def _stacked(tx: TraceContext, nested: Nested, options: dict[str, Value]) -> Value:
    if not isinstance(nested, list):
        is_tensor = isinstance(nested, TensorValue)
        return converted(tx, nested, options["dtype"].constant()) if is_tensor else _full(tx, nested, options)
    made = [_stacked(tx, part, options) for part in nested]
    return tx.run_in_graph("call_function", torch.stack, [ListValue(made)], {})


def _full(tx: TraceContext, number: Value, options: dict[str, Value]) -> Value:
    made = tx.run_in_graph("call_function", torch.full, [TupleValue(()), number], options)
    if isinstance(number, SymbolicValue) and number.python_type() is int and isinstance(made, TensorValue):
        mark_number(made.known_node)
    return made


__all__ = ["new_tensor", "tensor_of_numbers"]
