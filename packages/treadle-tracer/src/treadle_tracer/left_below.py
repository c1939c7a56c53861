"""Functions that Python runs with all that they call, because each call of them is made once.

@functools.lru_cache
def plan(equation, sizes): ...        # a parser, a planner; its results are kept, a compile of it or of its helpers serves no other call
"""

from __future__ import annotations

import functools
from collections.abc import MutableMapping
from types import CodeType, MethodType
from typing import Any

from torch.utils.weak import WeakIdKeyDictionary

_LEFT: MutableMapping[CodeType, None] = WeakIdKeyDictionary()


def leave_below(function: Any) -> None:
    """Leave a Python function to Python from now on. Of a partial or a method, it is the function in it; nothing else counts."""
    while isinstance(function, (functools.partial, MethodType)):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType):
        _LEFT[code] = None


def is_left_below(code: CodeType) -> bool:
    """Whether `leave_below` was called for a function with this code."""
    return code in _LEFT


__all__ = ["is_left_below", "leave_below"]
