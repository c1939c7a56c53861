"""`sys._getframe` and `globals`: the frames of the traced program that have called each other without anything between them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from treadle_tracer.by_identity import is_one_of
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import GlobalsSource
from treadle_tracer.values.base import Constant
from treadle_tracer.values.functions import BoundMethod, FunctionValue
from treadle_tracer.values.rules.rule import Args, Effect, Kwargs, Rule
from treadle_tracer.values.value import FrameView, Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


class FrameValue(Value):
    """The frame `depth` calls above the innermost one of `frames`: where it is, which code it runs and its globals, not its locals."""

    __slots__ = ("depth", "frames")

    def __init__(self, frames: tuple[FrameView, ...], depth: int):
        self.source = None
        self.frames = frames
        self.depth = depth

    def python_type(self) -> type:
        return type(sys._getframe())

    def identity(self) -> Any:
        return self.frames[-1 - self.depth]

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        frame = self.frames[-1 - self.depth]
        if not is_one_of(frame, tx.frames):
            raise Unsupported("frame-read", "one that has returned")
        if name == "f_code":
            return Constant(frame.function_code)
        if name == "f_lineno":
            return Constant(frame.instructions[frame.at].line)
        if name == "f_back":
            return _frame_above(self.frames, self.depth + 1)
        if name == "f_globals":
            return _globals_of(tx, frame)
        raise Unsupported("frame-read", f"its {name}")


def _get_frame(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    if kwargs or len(args) > 1 or not all(arg.python_type() is int for arg in args):
        raise Unsupported("call", "sys._getframe with these arguments")
    depth = max(args[0].constant(), 0) if args else 0
    frames: tuple[Any, ...] = tuple(tx.frames)
    for level in range(depth):
        _frame_above(frames, level + 1)
    return _frame_above(frames, depth)


def _frame_above(frames: tuple[Any, ...], depth: int) -> FrameValue:
    """Raises Unsupported where Python may have other frames than the trace."""
    why_not = _why_not_known(frames, depth)
    if why_not is not None:
        raise Unsupported("frame-read", why_not)
    return FrameValue(frames, depth)


def _why_not_known(frames: tuple[Any, ...], depth: int) -> str | None:
    if depth >= len(frames):
        return "one outside the trace"
    frame = frames[-1 - depth]
    if not frame.shows_itself:
        return "one that is continued in another"
    if depth == 0:
        return None
    at, callee = frame.called
    function = callee.function if isinstance(callee, BoundMethod) else callee
    is_direct = at == frame.at and isinstance(function, FunctionValue)
    return (
        None
        if is_direct and function.code is frames[-depth].function_code
        else "one that another has been called through"
    )


def _globals(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    if args or kwargs:
        raise Unsupported("call", "globals() with arguments")
    return _globals_of(tx, tx.frames[-1])


def _globals_of(tx: TraceContext, frame: FrameView) -> Value:
    """The globals of a frame as a dict. Where the program changes names in it as well, `values.aliases` refuses the trace."""
    scope: dict[str, Any] = frame.globals
    tx.scopes[id(scope)] = scope
    return tx.wrap(scope, tx.globals_source(scope) or GlobalsSource())


RULES = (
    Rule(sys._getframe, _get_frame, Effect.READS_STATE),
    Rule(globals, _globals, Effect.READS_STATE),
)
