"""What the points of a loop have to do with one another: whether they store to the same element, and what is the same at all of them."""

from __future__ import annotations

from collections.abc import Iterable

from treadle_codegen.ir.loops import Axis, Instr, Load, Loop, symbols_of
from treadle_codegen.ir.ops import OPS
from treadle_codegen.schedule.access import split_index
from treadle_codegen.schedule.kernel import Section
from treadle_shapes.expr import Symbol


def addresses_through_data(loops: Iterable[Loop]) -> bool:
    """Whether some position in memory is data."""
    return any(instr.op in ("indirect_load", "indirect_store") for loop in loops for instr in loop.body)


def why_in_order(section: Section, axis: Axis) -> str | None:
    """Why the points along an axis must come one after the other, or None: no two of them store to the same element."""
    for loop in section.members:
        for instr in loop.body:
            if instr.op == "indirect_store":
                positions = [loop.body[k] for k in instr.args[1:]]
                if not any(_steps_along(p, axis.symbol) for p in positions):
                    return "two points may store to the same element"
    return None


def _steps_along(position: Instr, symbol: Symbol) -> bool:
    """Whether a position is another one at each point of an axis."""
    split = split_index(position.attr, [symbol]) if position.op == "index" else None
    return (
        split is not None and isinstance(split[0][0], int) and split[0][0] != 0 and symbol not in symbols_of(split[1])
    )


def why_varies(loop: Loop, k: int, symbol: Symbol, written: set[str]) -> str | None:
    """Why the value of instruction `k` may change along the axis of a symbol; `written`: buffers that change meanwhile."""
    instr = loop.body[k]
    if not OPS[instr.op].pure or instr.op in ("masked_load", "indirect_load", "reduce"):
        return f"it depends on {instr.op}"
    attr = instr.attr.index if isinstance(instr.attr, Load) else instr.attr
    if symbol in symbols_of(attr):
        return "it is read along the axis"
    if isinstance(instr.attr, Load) and instr.attr.buffer in written:
        return "its memory is written meanwhile"
    return next((reason for a in instr.args if (reason := why_varies(loop, a, symbol, written)) is not None), None)
