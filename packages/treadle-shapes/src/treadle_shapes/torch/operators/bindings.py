"""Torch's bindings of operators: functions in C++ that parse arguments of Python themselves, 0.6 to 1.6 us a call faster than an overload.

    binding_of(torch.ops.aten.mv.default)       # torch.mv
    binding_of(torch.ops.aten.sum.default)      # None: torch.sum chooses among overloads
    binding_of_call(torch.ops.aten.sum.default, [x], {})    # torch.sum: for these arguments it chooses this one

A record declares one where this does not find it, or where another function does the same as the operator. What a binding chooses for a
call is seen by making the call on tensors of the meta device, in a mode that stops it before anything is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import BuiltinFunctionType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from treadle_shapes.torch.operators.table import operator

_MODULES: tuple[Any, ...] = (
    torch._C._VariableFunctions,
    torch._C._nn,
    torch._C._linalg,
    torch._C._special,
    torch._C._fft,
)


def binding_of(op: Any) -> Callable[..., Any] | None:
    """The Python callable with the arguments of an overload that parses them faster, if there is one."""
    record = operator(op)
    declared = None if record is None else record.binding
    return declared or _binding_of_only_overload(op)


@cache
def _binding_of_only_overload(op: Any) -> Callable[..., Any] | None:
    """The binding of an operator's name, where it cannot mean another overload."""
    if not isinstance(op, torch._ops.OpOverload) or op.namespace != "aten" or op._overloadname != "default":
        return None
    others = [getattr(op.overloadpacket, name) for name in op.overloadpacket.overloads() if name != "default"]
    if not all(any(argument.is_out for argument in other._schema.arguments) for other in others):
        return None
    # Left out, it is the mean for the operator, and none for the binding, whose parser reads `Mean` as 0.
    if any(argument.name == "reduction" for argument in op._schema.arguments):
        return None
    return named_binding(op)


def named_binding(op: Any) -> Callable[..., Any] | None:
    """The binding of an operator's name, whichever overload it chooses."""
    if not isinstance(op, torch._ops.OpOverload) or op.namespace != "aten":
        return None
    found = (getattr(module, op._opname, None) for module in _MODULES)
    return next((binding for binding in found if isinstance(binding, BuiltinFunctionType)), None)


def binding_of_call(
    op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype | None = None
) -> Callable[..., Any] | None:
    """The binding that calls the operator `op` for arguments like these, if there is one.

    Tensors among the arguments are on the meta device; only their dtypes and numbers of dimensions matter, and of numbers their types.
    dtype: of the result, which a binding may name where the operator is called without.
    """
    binding = named_binding(op)
    if binding is None:
        return None
    key = (op, dtype, _kind(args), _kind(kwargs))
    if key not in _CHOSEN:
        _CHOSEN[key] = _chooses(binding, op, args, kwargs, dtype)
    return binding if _CHOSEN[key] else None


_CHOSEN: dict[Any, bool] = {}


def _kind(arg: Any) -> Any:
    """Equal for arguments for which a binding chooses the same overload."""
    if isinstance(arg, torch.Tensor):
        return arg.dtype, arg.dim()
    if isinstance(arg, (list, tuple)):
        return type(arg), tuple(map(_kind, arg))
    if isinstance(arg, Mapping):
        return tuple((name, _kind(value)) for name, value in arg.items())
    return arg if isinstance(arg, (torch.dtype, torch.device, torch.layout)) else type(arg)


def _chooses(
    binding: Callable[..., Any], op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype | None
) -> bool:
    if any(argument.is_out for argument in op._schema.arguments):
        return False
    recording = _Recording()
    try:
        with torch._C.DisableTorchFunction(), torch.no_grad(), recording:
            binding(*args, **kwargs)
    except _Stop:
        pass
    except Exception:  # it does not take these arguments
        return False
    if recording.found is None or recording.found[0] is not op:
        return False
    given = _by_name(op, args, kwargs)
    for name, value in _by_name(op, *recording.found[1:]).items():
        is_known = name in given and _is_same(given.pop(name), value)
        is_told = (name == "dtype" and value is dtype) or (name == "layout" and value is torch.strided)
        if not (is_known or (is_told and name not in given)):
            return False
    return not given


class _Stop(Exception):
    pass


class _Recording(TorchDispatchMode):
    """Notes the first operator that is called, and stops there."""

    found: tuple[Any, Sequence[Any], Mapping[str, Any]] | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch wraps __torch_dispatch__ in something that imports torch._dynamo

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found = (func, args, kwargs or {})
        raise _Stop


def _by_name(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call that are not the defaults."""
    schema = op._schema.arguments
    named = dict(zip((argument.name for argument in schema), args, strict=False)) | dict(kwargs)
    defaults = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    return {name: value for name, value in named.items() if name not in defaults or not _is_same(value, defaults[name])}


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_is_same, a, b))
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return a is b
    return type(a) is type(b) and a == b
