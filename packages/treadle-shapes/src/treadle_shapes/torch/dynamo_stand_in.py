"""A stand-in for ``torch._dynamo``. PyTorch's fake tensors would import the real one. Needs torch.

The import takes 1.2 to 1.8 s (ARCHITECTURE section 4). Three places in ``FakeTensorMode`` cause it:

1. ``FakeTensorMode.__init__`` reads two settings from ``torch._dynamo.config``;
2. every operator without a cached result reads ``torch._dynamo.config._custom_ops_profile``;
3. functions wrapped by ``torch._disable_dynamo`` import it on their first call, unless the wrapped function already carries
   the attribute ``__dynamo_disable`` (``torch/_compile.py``): ``FakeTensorMode.__torch_dispatch__`` and the reference
   implementations in ``torch._refs``.

The stand-in serves all three. It forwards every other attribute to the real module, which it then imports. An import of the real
``torch._dynamo`` replaces the stand-in for good.
"""

from __future__ import annotations

import builtins
import importlib
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

_REAL = "torch._dynamo"

# The settings of torch._dynamo.config that fake tensors read, with their defaults in torch 2.11 to 2.13.
_CONFIG_DEFAULTS: dict[str, object] = {
    "fake_tensor_cache_enabled": True,
    "fake_tensor_cache_crosscheck_enabled": False,
    "_custom_ops_profile": None,
}

# Modules with functions that torch._disable_dynamo wraps and that meta functions and decompositions call.
_WRAPPED_IN = (
    "torch._refs",
    "torch._refs.nn.functional",
    "torch._refs.special",
    "torch._refs.linalg",
    "torch._refs.fft",
)
_EMPTY_CELL = types.CellType()


class _ConfigStandIn:
    """Stands for ``torch._dynamo.config``. Any setting outside `_CONFIG_DEFAULTS` comes from the real one."""

    def __getattr__(self, name: str) -> Any:
        if name in _CONFIG_DEFAULTS:
            return _CONFIG_DEFAULTS[name]
        return getattr(importlib.import_module(_REAL).config, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(importlib.import_module(_REAL).config, name, value)


class _DynamoStandIn:
    """Stands for the attribute ``torch._dynamo``; importing the real package replaces it."""

    config = _ConfigStandIn()

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(_REAL), name)


def is_imported() -> bool:
    """Whether the real ``torch._dynamo`` is in the process."""
    return _REAL in sys.modules


def import_without_dynamo(name: str, *args: Any, **kwargs: Any) -> Any:
    """``__import__`` for PyTorch code that reads ``torch._dynamo.config``. Returns `torch`, whose attribute is the stand-in."""
    return torch if name == f"{_REAL}.config" else builtins.__import__(name, *args, **kwargs)


def _disable_lazily(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the callable for ``__dynamo_disable``: it runs `function`, or dynamo's own wrapper once dynamo is imported."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if _REAL in sys.modules and (disable := getattr(sys.modules[_REAL], "disable", None)) is not None:
            real = disable(function, True, wrapping=False)
            setattr(function, "__dynamo_disable", real)
            return real(*args, **kwargs)
        return function(*args, **kwargs)

    return run


def _dynamo_wrapped(inner_code: types.CodeType) -> Iterable[types.FunctionType]:
    """Yield the functions that ``torch._disable_dynamo`` wraps and fake tensors call."""
    candidates: list[object] = [FakeTensorMode.__torch_dispatch__]
    for module in _WRAPPED_IN:
        candidates += vars(importlib.import_module(module)).values()
    for table in importlib.import_module("torch._decomp").global_decomposition_table.values():
        candidates += table.values()
    seen: set[int] = set()
    while candidates:
        value = candidates.pop()
        if not isinstance(value, types.FunctionType) or id(value) in seen:
            continue
        seen.add(id(value))
        if value.__code__ is inner_code:
            yield value
        elif value.__module__.startswith("torch._"):  # PyTorch's decorators hold the wrapped function in a cell
            candidates += [cell.cell_contents for cell in value.__closure__ or () if cell != _EMPTY_CELL]


def install() -> None:
    """Install the stand-in, unless the real ``torch._dynamo`` is imported."""
    if _REAL in sys.modules or "_dynamo" in vars(torch):
        return
    inner_code = FakeTensorMode.__torch_dispatch__.__code__
    cell_of_wrapped = inner_code.co_freevars.index("fn")  # a later decorator may have overwritten `__wrapped__`
    for wrapper in _dynamo_wrapped(inner_code):
        wrapped = (wrapper.__closure__ or ())[cell_of_wrapped].cell_contents
        if not hasattr(wrapped, "__dynamo_disable"):
            setattr(wrapped, "__dynamo_disable", _disable_lazily(wrapped))
    setattr(torch, "_dynamo", _DynamoStandIn())  # noqa: B010 (a name that may not appear as an attribute)
