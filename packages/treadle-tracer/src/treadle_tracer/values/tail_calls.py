"""Calls whose result is the result of one function of the program: what a graph break inside that function may rely on.

If every step from a call instruction to the frame of the called function is marked `tail_call`, then the call instruction pushes what the
frame returns and does nothing else with it. So the frame's continuation can be called in its place (`output.resume`).
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])

TAIL_CALLS: set[CodeType] = set()


def tail_call(function: _Function) -> _Function:
    """Mark a step: wherever it evaluates a function of the program, it gives back the result unchanged and does nothing afterwards.

    What it evaluates on the way, through functions without the mark, does not count.
    """
    TAIL_CALLS.add(function.__code__)
    return function
