"""How deep inside called functions the compiled frame is left at a graph break.

A frame in the middle of a call can go on in a continuation that calls the continuation of the called function, if the call instruction
pushes the result of that function and does nothing else (`values.tail_calls`). Otherwise the frame is left before the call.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence, Set
from types import CodeType
from typing import Protocol

import torch

from treadle_tracer.skips import why_not_trace
from treadle_tracer.values.tail_calls import TAIL_CALLS

# Deeper calls are left before the first one: each frame that is left inside costs a function call at every break.
_MOST_FRAMES = 40
# The wrapper that `@torch.no_grad()` puts around a function.
_CONTEXTS = torch.utils._contextlib.__file__


class Leavable(Protocol):
    """What is asked of a frame: see `trace.frame`."""

    function_code: CodeType

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
    # A library's function is split no more than it is compiled when Python calls it: steps of optimizers, hooks of modules.
    skip = why_not_trace(frame.function_code)
    return None if skip is None else skip.text


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
