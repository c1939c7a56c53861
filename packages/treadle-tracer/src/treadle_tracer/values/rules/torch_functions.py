"""Rules of torch's functions that are neither one node nor evaluated: checks, autograd functions, tensors of symbolic numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing

from treadle_tracer.values import differentiation, unbacked
from treadle_tracer.values.arrays import ArrayValue
from treadle_tracer.values.base import NONE, Constant, LazyValue
from treadle_tracer.values.dispatched_tensors import correct_aliasing, new_dispatched
from treadle_tracer.values.floats import is_float
from treadle_tracer.values.rules import autograd_functions
from treadle_tracer.values.rules.checkpoints import checkpoint
from treadle_tracer.values.rules.numpy_arrays import tensor_of_array
from treadle_tracer.values.rules.rule import Apply, Args, Effect, Kwargs, Rule, members
from treadle_tracer.values.sequences import ListValue, TupleValue
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
    """torch.tensor(f) -> torch.full((), f);  torch.tensor([f, 2.0]) -> torch.stack of such"""

    def run(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
        array = args[0].force(tx) if args and isinstance(args[0], LazyValue) else args[0] if args else None
        if isinstance(array, ArrayValue):
            return tensor_of_array(tx, function, array, args[1:], kwargs)
        items = args[0].unpack(tx) if len(args) == 1 and isinstance(args[0], (ListValue, TupleValue)) else args
        items = [item.force(tx) if isinstance(item, LazyValue) else item for item in items]
        kinds = {item.python_type() for item in items}
        dynamic = any(is_float(item) or unbacked.is_unbacked(tx, item) for item in items) and kinds <= {
            int,
            float,
            bool,
        }
        if len(args) != 1 or not dynamic or not kwargs.keys() <= {"dtype", "device"}:
            return tx.run_in_graph("call_function", function, args, kwargs)
        own = torch.get_default_dtype() if float in kinds else torch.int64 if int in kinds else torch.bool
        options = {"dtype": Constant(own), **kwargs}
        if options["dtype"].constant() is None:
            options["dtype"] = Constant(own)
        made = [tx.run_in_graph("call_function", torch.full, [TupleValue(()), item], options) for item in items]
        return made[0] if items == args else tx.run_in_graph("call_function", torch.stack, [ListValue(made)], {})

    return run


_CHECKS = {
    "_check": RuntimeError,
    "_check_index": IndexError,
    "_check_value": ValueError,
    "_check_type": TypeError,
    "_check_not_implemented": NotImplementedError,
}

RULES = (
    *[Rule(function, _check(error)) for name, error in _CHECKS.items() for function in members("torch", name)],
    Rule(torch._check_with, _check_with),
    *[Rule(f, _constrain(0)) for f in members("torch", "_check_is_size sym_constrain_range_for_size")],
    *[Rule(f, _constrain(None)) for f in members("torch", "sym_constrain_range")],
    Rule(torch.autograd.Function.apply.__func__, autograd_functions.apply),  # type: ignore[attr-defined]
    Rule(torch.autograd.backward, differentiation.backward, Effect.WRITES_ARGUMENTS),
    Rule(torch.autograd.grad, differentiation.grad, Effect.GRAPH),
    Rule("torch.utils.checkpoint.checkpoint", checkpoint),
    Rule(torch.Tensor._make_wrapper_subclass, new_dispatched),  # type: ignore[attr-defined]
    Rule(return_and_correct_aliasing, correct_aliasing),
    *[Rule(function, _tensor_of_numbers(function), Effect.GRAPH) for function in (torch.tensor, torch.as_tensor)],
)
