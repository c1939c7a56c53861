"""Which Python callable the host calls for an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from treadle_codegen.ir.loops import BoolExpr, Buffer, Expr, Extern, FloatExpr, View
from treadle_shapes.torch import binding_of, binding_of_call
from treadle_shapes.torch import operator as operator_record

_SIZE = 3  # stands for a size that changes


def callee_of(op: Any, replacements: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """The target's replacement, else torch's own binding, which parses arguments faster, else the operator itself."""
    return replacements.get(str(op)) or binding_of(op) or op


def needs_schema_call(op: Any, replacements: Mapping[str, Callable[..., Any]]) -> bool:
    """Whether out arguments are passed by their schema names, as an OpOverload takes them, rather than as `out=`."""
    record = operator_record(op)
    return str(op) in replacements or record is None or record.binding is None


def callee_of_call(
    step: Extern, buffers: Mapping[str, Buffer], replacements: Mapping[str, Callable[..., Any]]
) -> Callable[..., Any]:
    """`callee_of` for one call; a binding with several overloads also serves where it chooses the operator for these arguments."""
    found = callee_of(step.op, replacements)
    if found is not step.op or step.out_variant:
        return found
    args = [_example(arg, buffers) for arg in step.args]
    kwargs = {name: _example(arg, buffers) for name, arg in step.kwargs.items()}
    result = next((buffers[name].dtype for name in step.outputs if name), None)
    return binding_of_call(step.op, args, kwargs, result) or found


def _example(arg: Any, buffers: Mapping[str, Buffer]) -> Any:
    """An argument like this one, of the same type; no memory stands behind a tensor."""
    if isinstance(arg, View):
        shape = [size if isinstance(size, int) else _SIZE for size in arg.shape]
        return torch.empty(shape, dtype=buffers[arg.buffer].dtype, device="meta")
    if isinstance(arg, (list, tuple)):
        return type(arg)(_example(item, buffers) for item in arg)
    if isinstance(arg, Expr):
        return _SIZE
    if isinstance(arg, FloatExpr):
        return 0.5
    return True if isinstance(arg, BoolExpr) else arg
