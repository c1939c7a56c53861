"""Items of arrays of the graph: `array[key]`, `array[key] = value`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.array_options import index_option, plain
from treadle_tracer.values.array_ufuncs import (
    as_array,
    converted,
    in_dtype,
    operand,
)
from treadle_tracer.values.arrays import ArrayValue, in_graph, note_numpy_calls, numpy_module
from treadle_tracer.values.backwards_view import BackwardsView, backwards_view
from treadle_tracer.values.base import Constant, LazyValue
from treadle_tracer.values.constants import is_numpy_scalar
from treadle_tracer.values.numpy_numbers import NumpyNumber
from treadle_tracer.values.sequences import ListValue, SliceValue, TupleValue, make_slice
from treadle_tracer.values.tensor import SymbolicValue, TensorValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

# ---- items


def get_item(tx: TraceContext, owner: ArrayValue, key: Value) -> ArrayValue | BackwardsView:
    """`owner[key]`: a view for slices and whole numbers, a copy for arrays, a scalar for a single element."""
    if owner.is_scalar:
        raise Unsupported("numpy", "an item of a scalar")
    parts = _parts(tx, key)
    if any(map(_runs_backwards, parts)):
        return backwards_view(tx, owner, [part.obj if isinstance(part, Constant) else part for part in parts])
    keys = [_key(tx, part) for part in parts]
    is_element = len(keys) == owner.ndim and all(map(_is_position, keys))
    found = tx.tensor_item(owner.tensor, _tensor_key(tx, keys))
    assert isinstance(found, TensorValue)
    note_numpy_calls(found, 1)
    if is_element:
        return ArrayValue(note_numpy_calls(in_graph(tx, torch.clone, found), 0), is_scalar=True)
    return ArrayValue(found)


def set_item(tx: TraceContext, owner: ArrayValue, key: Value, value: Value) -> None:
    """`owner[key] = value`"""
    if owner.is_scalar:
        tx.raise_exception(TypeError, f"'numpy.{owner.python_type().__name__}' object does not support item assignment")
    keys = [_key(tx, part) for part in _parts(tx, key)]
    given = _value_to_store(tx, owner.tensor, value, owner.dtype)
    tx.store_tensor_item(owner.tensor, _tensor_key(tx, keys), given)


def _parts(tx: TraceContext, key: Value) -> list[Value]:
    key = key.force(tx) if isinstance(key, LazyValue) else key
    if isinstance(key, TupleValue):
        return [part.force(tx) if isinstance(part, LazyValue) else part for part in key.items]
    return [key]


def _runs_backwards(part: Value) -> bool:
    step = part.obj.step if isinstance(part, Constant) and type(part.obj) is slice else None
    return type(step) is int and step < 0


def _tensor_key(tx: TraceContext, keys: list[Value]) -> Value:
    """The key of a tensor that selects what these parts select of an array."""
    if any(isinstance(part, ArrayValue) and not part.is_scalar for part in keys) and _are_separated(keys):
        keys = [_index_of_position(tx, part) if _is_position(part) else part for part in keys]
    tensors = [part.tensor if isinstance(part, ArrayValue) else part for part in keys]
    return TupleValue(tensors) if len(tensors) != 1 else tensors[0]


def _are_separated(keys: list[Value]) -> bool:
    """Whether a slice, Ellipsis or None stands between arrays and whole numbers. The dimensions of the arrays then come first in NumPy's
    result. PyTorch does so only where it stands between arrays."""
    found = [place for place, part in enumerate(keys) if isinstance(part, ArrayValue) or _is_position(part)]
    return found[-1] - found[0] >= len(found)


def _index_of_position(tx: TraceContext, part: Value) -> TensorValue:
    """A whole number as an array of one index, which is broadcast with the other arrays."""
    if isinstance(part, ArrayValue):
        return in_graph(tx, torch.reshape, part.tensor, (1,))
    return in_graph(tx, torch.full, (1,), part, dtype=torch.int64, device="cpu")


def _key(tx: TraceContext, part: Value) -> Value:
    """A part of a key as a tensor is indexed with it."""
    if isinstance(part, NumpyNumber):
        part = part.fixed(tx)
    if isinstance(part, Constant):
        if is_numpy_scalar(part.obj) and part.obj.dtype.kind in "iu":
            return Constant(int(part.obj))
        if part.obj is None or part.obj is Ellipsis or type(part.obj) is int:
            return part
        if type(part.obj) is slice:
            return _forward(part, part.obj.step)
    if isinstance(part, SliceValue):
        ends = [Constant(one.as_index(tx)) if isinstance(one, ArrayValue) else one for one in part.parts]
        part, step = make_slice(ends), ends[2]
        if isinstance(part, Constant):
            return _forward(part, part.obj.step)
        return _forward(part, plain(step) if not isinstance(step, SymbolicValue) else -1)
    if isinstance(part, SymbolicValue) and part.python_type() is int:
        return part
    if isinstance(part, (ArrayValue, ListValue)):
        return _index_array(tx, as_array(tx, part) if isinstance(part, ListValue) else part)
    raise Unsupported("numpy", f"an array indexed with {part.describe()}")


def _forward(part: Value, step: Any) -> Value:
    if step is not None and index_option(Constant(step)) < 0:
        raise Unsupported("numpy", "a slice that goes backwards, of which a tensor has no view")
    return part


def _index_array(tx: TraceContext, index: ArrayValue) -> ArrayValue:
    if index.dtype.kind == "b" and index.ndim:
        return index
    if index.dtype.kind not in "iu" or (index.ndim == 0 and not index.is_scalar):
        raise Unsupported("numpy", f"an array indexed with {index.describe()}")
    return ArrayValue(converted(tx, index.tensor, numpy_module().dtype("int64")), index.is_scalar)


def _is_position(part: Value) -> bool:
    if isinstance(part, ArrayValue):
        return part.is_scalar
    return isinstance(part, SymbolicValue) or (isinstance(part, Constant) and type(part.obj) is int)


def _value_to_store(tx: TraceContext, target: TensorValue, value: Value, dtype: Any) -> Value:
    """A value that is assigned to elements of `target`, converted to its dtype."""
    side = operand(tx, value)
    if isinstance(side.value, TensorValue):
        given = converted(tx, side.value, dtype)
        return in_graph(tx, torch.clone, given) if _shares_memory(given, target) else given
    if isinstance(side.value, SymbolicValue):
        raise Unsupported("numpy", "a dynamic number stored in an array")
    number = side.value.constant()
    if dtype.kind in "iu" and type(number) is float:
        if not math.isfinite(number):
            raise Unsupported("numpy", f"{number} stored in an array of {dtype}")
        number = int(number)
    if isinstance(number, complex) and dtype.kind != "c":
        raise Unsupported("numpy", "a complex number stored in an array of real numbers")
    return in_dtype(tx, operand(tx, Constant(number)), dtype)


def _shares_memory(a: TensorValue, b: TensorValue) -> bool:
    return a.fake.untyped_storage()._cdata == b.fake.untyped_storage()._cdata


def store(tx: TraceContext, target: TensorValue, value: Value, dtype: Any, where: TensorValue | None = None) -> None:
    """Write a value to all elements, or to those where `where` is true."""
    given = _value_to_store(tx, target, value, dtype)
    if where is not None:
        given = in_graph(tx, torch.where, where, given, target)
    in_graph(tx, torch.Tensor.copy_, target, given)
