"""Tensors of NumPy's arrays, and functions of NumPy that are traced as a whole although they are written in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.array_functions import eye
from treadle_tracer.values.arrays import ArrayValue
from treadle_tracer.values.rules.rule import Args, Effect, Kwargs, Rule
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


def tensor_of_array(
    tx: TraceContext, function: Callable[..., Any], array: ArrayValue, args: Args, kwargs: Kwargs
) -> Value:
    """`torch.tensor(array, ...)`, a copy, and `torch.as_tensor(array, ...)`, which shares the memory"""
    if args or not kwargs.keys() <= {"dtype", "device"} or not array.tensor.fake.is_contiguous():
        raise Unsupported("numpy", f"{function.__name__} of an array with these options")
    kept = tx.run_in_graph("call_method", "detach", [array.tensor], {})
    given = (
        kept
        if function is torch.as_tensor and not array.is_scalar
        else tx.run_in_graph("call_method", "clone", [kept], {})
    )
    options = {name: value for name, value in kwargs.items() if value.constant() is not None}
    return tx.run_in_graph("call_method", "to", [given], options) if options else given


def _from_numpy(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`torch.from_numpy(array)`: another tensor with the same memory"""
    if len(args) != 1 or kwargs or not isinstance(args[0], ArrayValue) or args[0].is_scalar:
        raise Unsupported("torch-call-raises", "from_numpy")
    return tx.run_in_graph("call_method", "detach", [args[0].tensor], {})


def _eye(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    if not args or len(args) > 4 or not kwargs.keys() <= {"M", "k", "dtype"}:
        raise Unsupported("numpy", "numpy.eye with these arguments")
    return eye(tx, *args, **{"columns" if name == "M" else name: value for name, value in kwargs.items()})


RULES = (
    Rule(torch.from_numpy, _from_numpy, Effect.GRAPH),
    Rule("numpy.eye", _eye, Effect.GRAPH),
)
