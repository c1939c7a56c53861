"""Rules of torch's functions that are neither one node nor evaluated: checks, autograd functions, tensors of symbolic numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing

from treadle_shapes.torch import check_with
from treadle_tracer.errors import Unsupported
from treadle_tracer.values import differentiation, unbacked
from treadle_tracer.values.arrays import ArrayValue
from treadle_tracer.values.base import FALSE, NONE, Constant, LazyValue, is_none, settled
from treadle_tracer.values.dispatched_tensors import correct_aliasing, new_dispatched
from treadle_tracer.values.gradients import set_requires_grad
from treadle_tracer.values.numpy_numbers import plain_numbers, torch_dtype_of
from treadle_tracer.values.rules import autograd_functions
from treadle_tracer.values.rules.checkpoints import checkpoint
from treadle_tracer.values.rules.numpy_arrays import tensor_of_array
from treadle_tracer.values.rules.rule import Apply, Args, Effect, Kwargs, Rule, members
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.tensor_construction import copy_of_tensor, new_parameter
from treadle_tracer.values.tensor_subclasses import as_subclass
from treadle_tracer.values.tensors_of_numbers import tensor_of_numbers
from treadle_tracer.values.unbacked import check
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

# ---- checks


def _check(error: type) -> Apply:
    return lambda tx, args, kwargs: unbacked.check(tx, args[0] if args else kwargs["cond"], error)


def _check_with(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    return unbacked.check(tx, args[1] if len(args) > 1 else kwargs["cond"], args[0].constant())


def constrain(tx: TraceContext, number: Value, lower: Any, upper: Any) -> Value:
    """`torch.sym_constrain_range(number, min=lower, max=upper)`"""
    for comparison, end in ((">=", lower), ("<=", upper)):
        if end is not None:
            check(tx, tx.compare(comparison, number, Constant(end)), RuntimeError)
    return NONE


def _constrain(lowest: int | None) -> Apply:
    """`torch.sym_constrain_range(number, min=, max=)` and its like. `lowest` is the default of `min`."""

    def run(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
        given = {name: value.constant() for name, value in kwargs.items() if name in ("min", "max")}
        lower = lowest if given.get("min") is None else given["min"]
        return constrain(tx, args[0] if args else kwargs["size"], lower, given.get("max"))

    return run


# ---- tensors of symbolic numbers, which torch's constructors would read as plain numbers


def _tensor_of_numbers(function: Callable[..., Any]) -> Apply:
    """`torch.tensor(data)`, `torch.as_tensor(data)`"""

    def run(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
        data = args[0].force(tx) if args and isinstance(args[0], LazyValue) else args[0] if args else None
        if isinstance(data, ArrayValue):
            return tensor_of_array(tx, function, data, args[1:], kwargs)
        dtype = None if data is None else torch_dtype_of(data)
        if data is not None and dtype is not None:
            (data,) = plain_numbers([data])
            args = [data, *args[1:]]
            kwargs = kwargs if not is_none(kwargs.get("dtype", NONE)) else {**kwargs, "dtype": Constant(dtype)}
        copy = copy_of_tensor(tx, "torch.tensor", args, kwargs) if function is torch.tensor else None
        if copy is not None:
            return copy
        made = tensor_of_numbers(tx, data, kwargs) if data is not None and len(args) == 1 else None
        return tx.run_in_graph("call_function", function, args, kwargs) if made is None else made

    return run


# ---- tensors of subclasses


def _make_subclass(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`torch.Tensor._make_subclass(cls, data, require_grad=False)`: an alias of that class without a history"""
    named = {**dict(zip(("cls", "data", "require_grad"), args, strict=False)), **kwargs}
    cls, data, wanted = (settled(named.get(name, FALSE)) for name in ("cls", "data", "require_grad"))
    if len(args) > 3 or not named.keys() <= {"cls", "data", "require_grad"} or type(data) is not TensorValue:
        raise Unsupported("builtin-call", "torch.Tensor._make_subclass with these arguments")
    if cls.constant() is torch.nn.Parameter:
        return new_parameter(tx, [data, wanted], {})
    made = tx.run_in_graph("call_method", "detach", [data], {})
    assert isinstance(made, TensorValue)
    if cls.constant() is torch.Tensor:
        set_requires_grad(tx, made, wanted)
        return made
    if wanted.constant():
        raise Unsupported("builtin-call", "torch.Tensor._make_subclass that requires gradients")
    return as_subclass(tx, made, cls)


_CHECKS = {
    "_check": RuntimeError,
    "_check_index": IndexError,
    "_check_value": ValueError,
    "_check_type": TypeError,
    "_check_not_implemented": NotImplementedError,
}

RULES = (
    *[Rule(function, _check(error)) for name, error in _CHECKS.items() for function in members("torch", name)],
    *[Rule(function, _check_with) for function in {torch._check_with, check_with}],
    *[Rule(f, _constrain(0)) for f in members("torch", "_check_is_size sym_constrain_range_for_size")],
    *[Rule(f, _constrain(None)) for f in members("torch", "sym_constrain_range")],
    Rule(torch.autograd.Function.apply.__func__, autograd_functions.apply),  # type: ignore[attr-defined]
    Rule(torch.autograd.backward, differentiation.backward, Effect.WRITES_ARGUMENTS),
    Rule(torch.autograd.grad, differentiation.grad, Effect.GRAPH),
    Rule("torch.utils.checkpoint.checkpoint", checkpoint),
    Rule(torch.Tensor._make_subclass, _make_subclass, Effect.GRAPH),
    Rule(torch.Tensor._make_wrapper_subclass, new_dispatched),  # type: ignore[attr-defined]
    Rule(return_and_correct_aliasing, correct_aliasing),
    *[Rule(function, _tensor_of_numbers(function), Effect.GRAPH) for function in (torch.tensor, torch.as_tensor)],
)
