"""How deep inside called functions the compiled frame is left at a graph break.

A frame in the middle of a call can go on in a continuation that calls the continuation of the called function, if the call instruction
pushes the result of that function and does nothing else (`values.tail_calls`). Otherwise the frame is left before the call.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence, Set
from types import CodeType
from typing import Any, Protocol

import torch

from treadle_tracer.skips import Skip, may_hold_tensors, why_no_tensors, why_not_trace
from treadle_tracer.values.base import LazyValue, settled
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.numpy_numbers import NumpyNumber
from treadle_tracer.values.sequences import ListValue, TupleValue
from treadle_tracer.values.tail_calls import TAIL_CALLS
from treadle_tracer.values.tensor import SymbolicValue
from treadle_tracer.values.value import Value

# Deeper calls are left before the first one: each frame that is left inside costs a function call at every break.
_MOST_FRAMES = 40
# The wrapper that `@torch.no_grad()` puts around a function.
_CONTEXTS = torch.utils._contextlib.__file__


class Leavable(Protocol):
    """What is asked of a frame: see `trace.frame`."""

    function_code: CodeType
    globals: dict[str, Any]
    arguments: tuple[Value, ...] | None

    def break_step(self) -> int:
        """The step before which to leave the frame."""
        ...


def steps_to_leave(frames: Sequence[Leavable], loops: Set[CodeType]) -> tuple[int, ...]:
    """For each frame from the root inwards that may be left at its present instruction: the step before which to leave it.

    loops: the code of the methods that evaluate the instructions of a frame. The innermost of `frames` is being evaluated.
    """
    depth = 1
    if 1 < len(frames) <= _MOST_FRAMES:
        called = _called_directly(len(frames), loops)
        while depth < len(frames) and called[depth] and why_not_left_inside(frames[depth]) is None:
            depth += 1
    return tuple(frame.break_step() for frame in frames[:depth])


def why_not_left_inside(frame: Leavable) -> str | None:
    """Why the frame of a called function cannot go on in a continuation."""
    if frame.function_code.co_filename == _CONTEXTS:
        return None
    # A function is split no more than it is compiled when Python calls it: steps of optimizers, hooks of modules, and what computes with
    # numbers alone, which may break at each turn of a loop.
    skip = why_not_trace(frame.function_code) or _why_no_tensors(frame)
    return None if skip is None else skip.text


def _why_no_tensors(frame: Leavable) -> Skip | None:
    """Why the frame surely computes with no tensor; None when it might."""
    code = frame.function_code
    if frame.arguments is None or code.co_freevars:
        return None
    named = zip(code.co_varnames, frame.arguments, strict=False)
    others = {name: _outside_object(value) for name, value in named if not _is_plain(value)}
    is_made = any(obj is None for obj in others.values())
    return None if is_made else why_no_tensors(code, others, frame.globals, ())


def _outside_object(value: Value) -> Any:
    """The object from outside that a value stands for, None for what the trace has made."""
    value = settled(value)
    return None if value.source is None else getattr(value, "obj", None)


def _is_plain(value: Value) -> bool:
    """Whether no tensor can be found through a value. Nothing is guarded."""
    value = settled(value)
    if isinstance(value, LazyValue):
        return not may_hold_tensors(value.obj)
    obj = getattr(value, "obj", None)
    if obj is not None or value.is_constant():
        return not may_hold_tensors(value.constant() if obj is None else obj)
    if type(value) in (ListValue, TupleValue):
        return all(map(_is_plain, value.items))
    if isinstance(value, DictValue):
        return all(_is_plain(item) for pair in value.entries.values() for item in pair)
    return isinstance(value, (SymbolicValue, NumpyNumber))


def _called_directly(count: int, loops: Set[CodeType]) -> list[bool]:
    """For each of the frames, innermost last: whether nothing but tail calls stands between its loop and its caller's."""
    direct: list[bool] = []
    only_tail_calls = True
    python_frame = sys._getframe()
    inside = False
    while python_frame is not None and len(direct) < count - 1:
        code = python_frame.f_code
        if code in loops:
            if inside:
                direct.append(only_tail_calls)
            inside, only_tail_calls = True, True
        elif inside:
            only_tail_calls = only_tail_calls and code in TAIL_CALLS
        python_frame = python_frame.f_back
    return [*[False] * (count - len(direct)), *reversed(direct)]  # the root frame is called by nobody
