"""Calls of classes of tensors: `torch.nn.Parameter(data)`, `torch.FloatTensor(2, 3)`, `torch.autograd.Variable(tensor)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from treadle_tracer.by_identity import is_one_of
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import NONE, TRUE, Constant, LazyValue, is_none
from treadle_tracer.values.deferred_warnings import warn
from treadle_tracer.values.gradients import set_requires_grad
from treadle_tracer.values.numpy_numbers import plain_numbers
from treadle_tracer.values.sequences import ListValue, Sequence, TupleValue
from treadle_tracer.values.tensor import SymbolicValue, TensorValue
from treadle_tracer.values.tensors_of_numbers import tensor_of_numbers
from treadle_tracer.values.tensors_of_scalars import is_scalar
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


_ADVICE = (
    "To copy construct from a tensor, it is recommended to use sourceTensor.detach().clone() or "
    "sourceTensor.detach().clone().requires_grad_(True), rather than {}(sourceTensor)."
)


def copy_of_tensor(
    tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value], like: Value | None = None
) -> Value | None:
    """`torch.tensor(data)` and `like.new_tensor(data)` of a tensor, against which PyTorch advises; None for what this does not cover."""
    options = {**dict(zip(("data",), args, strict=False)), **kwargs}
    source = options.pop("data", NONE)
    source = source.force(tx) if isinstance(source, LazyValue) else source
    is_covered = len(args) <= 1 and options.keys() <= {"dtype", "device", "requires_grad"}
    if not isinstance(source, TensorValue) or not is_covered:
        return None
    wanted = options.pop("requires_grad", None)
    given = {key: value for key, value in options.items() if not is_none(value)}
    for key in ("dtype", "device") if like is not None else ():
        given.setdefault(key, like.get_attr(tx, key))
    warn(tx, Constant(_ADVICE.format(name)), UserWarning)
    plain = tx.run_in_graph("call_method", "detach", [source], {})
    if given:
        made = tx.run_in_graph("call_method", "to", [plain], {**given, "copy": TRUE})
    else:
        made = tx.run_in_graph("call_method", "clone", [plain], {})
    if wanted is not None and isinstance(made, TensorValue):
        set_requires_grad(tx, made, wanted)
    return made


def new_parameter(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`torch.nn.Parameter(data, requires_grad)`: a tensor with the same memory and without a history (torch/nn/parameter.py)"""
    named = {**dict(zip(("data", "requires_grad"), args, strict=False)), **kwargs}
    data, wanted = named.get("data", NONE), named.get("requires_grad", TRUE)
    data = data.force(tx) if isinstance(data, LazyValue) else data
    if not isinstance(data, TensorValue) or not is_one_of(data.python_type(), (torch.Tensor, torch.nn.Parameter)):
        raise Unsupported("new-parameter", f"torch.nn.Parameter of {data.describe()}")
    made = tx.run_in_graph("call_method", "detach", [data], {})
    assert isinstance(made, TensorValue)
    made.kind = torch.nn.Parameter
    set_requires_grad(tx, made, wanted)
    return made


def new_buffer(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`torch.nn.Buffer(data, persistent=...)`: no class of its own, but a tensor with attributes (torch/nn/parameter.py)"""
    return tx.inline(tx.wrap_known(torch.nn.Buffer.__new__), [tx.wrap_known(torch.nn.Buffer), *args], kwargs)


def new_tensor(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`torch.Tensor(...)`"""
    return tx.run_in_graph("call_function", torch.Tensor, args, kwargs)


def new_legacy_tensor(tx: TraceContext, cls: type, args: list[Value]) -> Value:
    """`torch.FloatTensor(2, 3)`, uninitialised, and `torch.FloatTensor([1, 2])`, of numbers"""
    dtype: torch.dtype = cls.dtype  # type: ignore[attr-defined]
    given = [arg.force(tx) if isinstance(arg, LazyValue) else arg for arg in args]
    options: dict[str, Value] = {"dtype": Constant(dtype), "device": Constant("cpu")}
    sizes = given[0].unpack(tx) if len(given) == 1 and given[0].python_type() is torch.Size else given
    if all(size.python_type() is int for size in sizes):
        return tx.run_in_graph("call_function", torch.empty, [TupleValue(sizes or [Constant(0)])], options)
    data = _plain_numbers(tx, given[0], dtype) if len(given) == 1 and isinstance(given[0], Sequence) else None
    if data is not None:
        made = tensor_of_numbers(tx, data, options)
        return tx.run_in_graph("call_function", torch.tensor, [data], options) if made is None else made
    raise Unsupported("new-builtin-subclass", f"torch.{cls.__name__} of {given[0].describe()}")


def _plain_numbers(tx: TraceContext, value: Value, dtype: torch.dtype) -> Value | None:
    """Nested lists of Python's numbers, or of tensors without dimensions, as `torch.tensor` takes them; None for others."""
    value = value.force(tx) if isinstance(value, LazyValue) else value
    if isinstance(value, Sequence):
        items = [_plain_numbers(tx, item, dtype) for item in value.unpack(tx)]
        return None if None in items else ListValue(items)
    (number,) = plain_numbers([value])
    if is_scalar(number):
        return number if dtype.is_floating_point or not number.fake.dtype.is_floating_point else None
    kinds = (int, bool, float) if dtype.is_floating_point else (int, bool)
    is_number = isinstance(number, (Constant, SymbolicValue)) and is_one_of(number.python_type(), kinds)
    return number if is_number else None


def new_variable(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`torch.autograd.Variable(tensor)`: the tensor without history"""
    if len(args) != 1 or kwargs or not isinstance(args[0], TensorValue):
        raise Unsupported("new-builtin-subclass", "torch.autograd.Variable with these arguments")
    return tx.run_in_graph("call_method", "detach", args, {})
