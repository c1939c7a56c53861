"""When a frame cannot be rebuilt where its trace breaks: leave it earlier.

    with opened(x) as y:          # a generator in the middle of its run stands on the operand stack
        print(y)                  # break: it cannot be made again

Entering the `with` for real instead puts a real context manager there, and the continuation can be left anywhere inside. The same goes
for a `for` over a generator or over the views of a traced dict. So the places to retreat to are the starts of the `with` and `for` blocks
around the break, innermost first, and the calls just before them or before the break itself (which make the generator).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType
from typing import TYPE_CHECKING

from ..bytecode import CodeModel
from ..errors import Unsupported
from .entry import FramePlan

if TYPE_CHECKING:
    from ..trace.result import TraceResult

_CALLS = ("CALL", "CALL_KW", "CALL_FUNCTION_EX")
# Every try costs a trace.
_MAX_TRIES = 6
# How far before an instruction the call stands that made what it works on: PRECALL, KW_NAMES and a constant may be between.
_CALL_DISTANCE = 4
_RETREAT_FROM = ("reconstruct", "no-continuation")


def place_break(
    code: CodeType, model: CodeModel, result: TraceResult, again: Callable[[int, Unsupported], TraceResult]
) -> FramePlan:
    """The plan of a trace, or of one that ends earlier. `again(stop_at, reason)` traces up to the first time that instruction is due.

    Raises the Unsupported of the first plan when there is no better place.
    """
    try:
        return FramePlan(code, model, result)
    except Unsupported as error:
        reason = result.reason
        if result.kind != "break" or reason is None or error.code not in _RETREAT_FROM:
            raise
        for place, _ in zip(places_before(model, result.index), range(_MAX_TRIES), strict=False):
            plan = _plan_up_to(code, model, again, place, reason)
            if plan is not None:
                return plan
        raise


def _plan_up_to(
    code: CodeType, model: CodeModel, again: Callable[[int, Unsupported], TraceResult], place: int, reason: Unsupported
) -> FramePlan | None:
    try:
        result = again(place, reason)
        return FramePlan(code, model, result) if result.kind == "break" else None
    except Unsupported:
        return None


def places_before(model: CodeModel, index: int) -> Iterator[int]:
    """Instructions to leave the frame at instead of `index`: the call just before it (an argument's), then the blocks around it."""
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
    """The BEFORE_WITH and GET_ITER of the blocks that `index` stands in; the handler or end of a block stands behind it."""
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
