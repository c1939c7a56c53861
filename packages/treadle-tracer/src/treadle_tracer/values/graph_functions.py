"""Which callables become one node of the graph when they are called."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from treadle_tracer.class_facts import defining_package, is_subtype
from treadle_tracer.source import AttrSource, ConstSource, DictItemSource
from treadle_tracer.values.class_lookup import lookup

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

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


_OF_TORCH_COMPILE = frozenset({"_dynamo"})
"""Names that the code reads while torch.compile traces it and at no other time. The module may be imported whenever the program likes."""


def goes_into_graph(obj: Any) -> bool:
    """Whether a call of this callable is one node."""
    kind = type(obj)
    if is_subtype(kind, OpOverload) or is_subtype(kind, OpOverloadPacket):
        return True
    if kind is types.BuiltinFunctionType:
        return obj.__module__ in _C_MODULES or obj.__qualname__.startswith("_VariableFunctionsClass.")
    if kind is types.FunctionType:
        named = obj.__module__ in _PYTHON_MODULES and obj.__name__ not in _EVALUATED
        return named and defining_package(obj) == "torch"
    return False


def rely_on_body(tx: TraceContext, function: types.FunctionType) -> None:
    """Register what the Python code of a function that goes into the graph as one node looks up: its globals, and functions of PyTorch and
    methods of tensors under the names that stand in its code. Backends run that code once, when they compile."""
    pending, seen = [function], set()
    while pending:
        current = pending.pop()
        if current.__code__ in seen:
            continue
        seen.add(current.__code__)
        tx.guards.add(ConstSource(current), "function_code", current)
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(current, name) is not None:
                tx.guards.add(AttrSource(ConstSource(current), name), "is", getattr(current, name))
        for name in _names_in(current.__code__) - _OF_TORCH_COMPILE:
            for module, scope in ((None, current.__globals__), (torch, vars(torch))):
                if name not in scope:
                    continue
                found = scope[name]
                tx.guards.add(DictItemSource(ConstSource(scope), name), "is", found)
                if module is None and isinstance(found, types.FunctionType) and goes_into_graph(found):
                    pending.append(found)
            lookup(tx, torch.Tensor, name)


def _names_in(code: types.CodeType) -> set[str]:
    """All names of globals and attributes in a code object and those nested in it."""
    nested = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*map(_names_in, nested))
