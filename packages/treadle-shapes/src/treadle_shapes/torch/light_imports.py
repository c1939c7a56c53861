"""Imports that PyTorch's fake tensors make in functions, and whose modules most calls never use. Needs torch.

``torch.fx.experimental.symbolic_shapes`` imports sympy: 0.4 s of processor time, half of what the first compile of a process takes. Where
all numbers are known, nothing of it is needed:

1. ``FakeTensorMode._dispatch_impl`` imports two functions of it, and sympy, for each operator without a cached result, and uses none;
   ``FakeTensorMode._make_cache_entry`` imports one, for higher-order operators;
2. ``torch._check`` asks it whether a condition holds that is a bool.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch

_SYMBOLIC_SHAPES = "torch.fx.experimental.symbolic_shapes"


class _LazySymbolicShapes:
    """Its functions import the module when they are called."""

    def __getattr__(self, name: str) -> Any:
        if name[:2] == "__":
            raise AttributeError(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            return getattr(importlib.import_module(_SYMBOLIC_SHAPES), name)(*args, **kwargs)

        return call


class _LazySympy:
    """Imports sympy for the first attribute."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("sympy"), name)


_LAZY = {_SYMBOLIC_SHAPES: _LazySymbolicShapes(), "sympy": _LazySympy()}


def import_lazily(name: str, *args: Any, **kwargs: Any) -> Any:
    """``__import__`` for PyTorch code that imports functions of symbolic_shapes, or sympy, and seldom uses them."""
    if name in _LAZY and name not in sys.modules:
        return _LAZY[name]
    return builtins.__import__(name, *args, **kwargs)


_check_with: Callable[..., None] = torch._check_with  # type: ignore[attr-defined]


@functools.wraps(_check_with)
def check_with(error_type: Any, cond: Any, message: Any) -> None:
    """`torch._check_with`, which does nothing for True, as PyTorch's own after the import."""
    if cond is not True:
        _check_with(error_type, cond, message)


def pass_what_holds() -> None:
    """Let ``torch._check`` and its kind call `check_with`."""
    module: Any = torch
    module._check_with = check_with


__all__ = ["check_with", "import_lazily", "pass_what_holds"]
