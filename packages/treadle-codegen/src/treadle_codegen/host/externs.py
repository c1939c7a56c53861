"""Which Python callable the host calls for an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import BuiltinFunctionType
from typing import Any

import torch

from treadle_shapes.torch import operator as operator_record

# Where torch keeps its bindings: functions in C++ that parse arguments of Python themselves.
_BINDINGS: tuple[Any, ...] = (
    torch._C._VariableFunctions,
    torch._C._nn,
    torch._C._linalg,
    torch._C._special,
    torch._C._fft,
)


def callee_of(op: Any, replacements: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """The target's replacement, else torch's own binding, which parses arguments faster, else the operator itself."""
    return replacements.get(str(op)) or _recorded_binding(op) or _binding_of_only_overload(op) or op


def needs_schema_call(op: Any, replacements: Mapping[str, Callable[..., Any]]) -> bool:
    """Whether out arguments are passed by their schema names, as an OpOverload takes them, rather than as `out=`."""
    return str(op) in replacements or _recorded_binding(op) is None


def _recorded_binding(op: Any) -> Callable[..., Any] | None:
    record = operator_record(op)
    return None if record is None else record.binding


@cache
def _binding_of_only_overload(op: Any) -> Callable[..., Any] | None:
    """The binding of an operator's name, where it cannot mean another overload: 0.6 to 1.6 us a call less (torch 2.13)."""
    if not isinstance(op, torch._ops.OpOverload) or op.namespace != "aten" or op._overloadname != "default":
        return None
    others = [getattr(op.overloadpacket, name) for name in op.overloadpacket.overloads() if name != "default"]
    if not all(any(argument.is_out for argument in other._schema.arguments) for other in others):
        return None
    found = (getattr(module, op._opname, None) for module in _BINDINGS)
    return next((binding for binding in found if isinstance(binding, BuiltinFunctionType)), None)
