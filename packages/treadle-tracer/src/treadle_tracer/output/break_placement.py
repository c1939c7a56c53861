"""Break placement: a frame that cannot be rebuilt where its trace breaks is left at an earlier instruction.

    with opened(x) as y:          # a generator in the middle of its run is on the operand stack
        print(y)                  # break: the generator cannot be rebuilt

If the frame is left before the `with`, Python enters it for real, and the continuation can be left anywhere inside. The same holds for a
`for` over a generator or over the views of a traced dict. The candidates are the starts of the `with` and `for` blocks around the break,
innermost first, and the calls just before them or before the break itself, which make the generator.

The same is done for a function that returns something that cannot be rebuilt.

A frame that handles an exception of the trace is left at the instruction that raised it, so that Python raises it for real.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType
from typing import TYPE_CHECKING, Protocol

from ..bytecode import CodeModel
from ..errors import Unsupported
from .entry import FramePlan

if TYPE_CHECKING:
    from ..trace.result import TraceResult

_CALLS = ("CALL", "CALL_KW", "CALL_FUNCTION_EX")
# Each candidate costs a trace.
_MAX_TRIES = 6
# So many calls are tried from the innermost one outwards, before the call that the frame itself makes.
_MAX_CALLS = 2
# An instruction's operand is made by a call at most so far before it: PRECALL, KW_NAMES and a constant may be between.
_CALL_DISTANCE = 4
# Break codes of a frame that cannot be left at an instruction.
_NOT_LEAVABLE = ("reconstruct", "no-continuation")


class TracesAgain(Protocol):
    """Traces the frame once more, up to a place, as if it broke there for `reason`."""

    def __call__(self, stop_at: int | None, reason: Unsupported, break_at: int | None = None) -> TraceResult:
        """stop_at: the first time that this instruction of the frame is due. break_at: this step of the trace."""
        ...


def place_break(code: CodeType, model: CodeModel, result: TraceResult, again: TracesAgain) -> FramePlan:
    """The plan of a trace, or of a shorter one.

    A break inside called functions that cannot be resumed there is put before the call of the last function, or of those around it.

    Raises the Unsupported of the first plan when no candidate works.
    """
    try:
        return FramePlan(code, model, result)
    except Unsupported as error:
        if error.code not in _NOT_LEAVABLE:
            raise
        reason = result.reason or error
        for step in _outer_steps(result):
            outer = again(None, reason, step)
            try:
                return FramePlan(code, model, outer)
            except Unsupported as other:
                if other.code not in _NOT_LEAVABLE:
                    raise
                error, result = other, outer
        places = [*_made(error), *_raising(result), *candidates(model, result.index)]
        for _ in range(_MAX_TRIES):
            if not places:
                break
            plan, before = _plan_up_to(code, model, again, places.pop(0), reason)
            if plan is not None:
                return plan
            places[:0] = before
        raise


def _outer_steps(result: TraceResult) -> list[int]:
    """The steps of the frames around the one that breaks, innermost first: some of the last, and the first."""
    outer = result.steps[-2::-1]
    return [*outer[:_MAX_CALLS], *outer[_MAX_CALLS:][-1:]]


def _made(error: Unsupported) -> Iterator[int]:
    """Where the value was made that cannot be rebuilt."""
    if error.made_at >= 0:
        yield error.made_at


def _raising(result: TraceResult) -> Iterator[int]:
    """Where an exception was raised that the frame is handling."""
    if result.handled is not None:
        yield from (at for _, at in result.raised[:-3:-1])


def _plan_up_to(
    code: CodeType, model: CodeModel, again: TracesAgain, place: int, reason: Unsupported
) -> tuple[FramePlan | None, list[int]]:
    """The plan of a trace up to an instruction, or None; and where the frame has to be left first for a break there to be possible."""
    try:
        result = again(place, reason)
    except Unsupported:
        return None, []
    if result.kind != "break":
        return None, []
    try:
        return FramePlan(code, model, result), []
    except Unsupported as error:
        return None, [at for at in (*_made(error), *_raising(result)) if at < place]


def candidates(model: CodeModel, index: int) -> Iterator[int]:
    """Instructions at which to leave the frame instead of `index`: the call just before it, then the blocks around it."""
    yield from _call_before(model, index)
    for start in sorted(_blocks_around(model, index), reverse=True):
        yield start
        yield from _call_before(model, start)


def _call_before(model: CodeModel, index: int) -> Iterator[int]:
    for before in range(index - 1, max(index - 1 - _CALL_DISTANCE, -1), -1):
        if model.instructions[before].opname in _CALLS:
            yield before
            return


def _blocks_around(model: CodeModel, index: int) -> Iterator[int]:
    """The BEFORE_WITH and GET_ITER of the blocks around `index`. A block ends where its handler or loop end begins."""
    for start, instruction in enumerate(model.instructions[:index]):
        if instruction.opname == "BEFORE_WITH":
            entry = model.handler_at(start + 1)
            end = entry.target if entry is not None else start
        elif instruction.opname == "GET_ITER" and model.instructions[start + 1].opname == "FOR_ITER":
            end = model.instructions[start + 1].target or start
        else:
            continue
        if start < index < end:
            yield start
