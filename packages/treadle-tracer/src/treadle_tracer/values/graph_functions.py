"""Which callables become one node of the graph when they are called."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

_C_MODULES = frozenset(
    f"torch._C._{name}" for name in ("nn", "fft", "linalg", "special", "sparse", "nested", "VariableFunctions")
)
_PYTHON_MODULES = frozenset({"torch.nn.functional", "torch.functional", "torch._lobpcg", "torch._lowrank"})
_EVALUATED = frozenset(
    {
        "boolean_dispatch",
        "handle_torch_function",
        "has_torch_function",
        "has_torch_function_unary",
        "has_torch_function_variadic",
        "assert_int_or_pair",
        "_overload",
    }
)
"""Names of functions in these modules that compute nothing."""


def goes_into_graph(obj: Any) -> bool:
    """Whether a call of this callable is one node."""
    if isinstance(obj, (OpOverload, OpOverloadPacket, torch.jit.ScriptFunction)):
        return True
    if isinstance(obj, types.BuiltinFunctionType):
        return obj.__module__ in _C_MODULES or obj.__qualname__.startswith("_VariableFunctionsClass.")
    if isinstance(obj, types.FunctionType):
        return obj.__module__ in _PYTHON_MODULES and obj.__name__ not in _EVALUATED
    return False
