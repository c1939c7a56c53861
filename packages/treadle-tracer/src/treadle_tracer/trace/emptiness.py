"""Jumps that ask whether a size that depends on data is 0: the path of a size that is not 0 is taken, and the graph checks that it is.

    index = batch[mask]
    count = int(index.max()) + 1 if index.numel() > 0 else 0    # the graph asserts index.shape[0] >= 1

Programs ask this because most operators need an item; what is there to compute stands on the other side. Calls in which there is none
run in Python. A jump that decides whether a loop goes on is no such question: taken for granted, it would have no last iteration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle_shapes.expr import Eq, Ge
from treadle_shapes.torch import raw_expr
from treadle_tracer.bytecode import successors
from treadle_tracer.values.tensor import SymbolicValue
from treadle_tracer.values.tensor_numbers import truth_value

if TYPE_CHECKING:
    from treadle_tracer.trace.frame import Frame
    from treadle_tracer.trace.program import Program
    from treadle_tracer.values.value import Value


def truth_with_items(frame: Frame, value: Value, sides: tuple[int, int]) -> bool | None:
    """The truth of `value` where no size is 0. None where it asks for something else, or the jump to `sides` may end a loop."""
    tx = frame.tx
    if not tx.symbols.expects_items or not isinstance(value, SymbolicValue):
        return None
    number = truth_value(tx, value)
    if not isinstance(number, SymbolicValue):
        return None
    condition = raw_expr(number.sym)
    sizes = [s for s in condition.free_symbols if s not in tx.symbols.env.hints]
    if not all(tx.symbols.unbacked.is_size(s) for s in sizes):
        return None
    some = tx.symbols.env.prove_under([Ge(s, 1) for s in sizes], condition)
    none = tx.symbols.env.prove_under([Eq(s, 0) for s in sizes], condition)
    if some is None or none is None or some == none or _may_go_on(frame, sides):
        return None
    return some


def _may_go_on(frame: Frame, sides: tuple[int, int]) -> bool:
    """Whether the side that is taken may come to this jump again, and the other one not; or the function calls itself."""
    if any(other is not frame and other.program is frame.program for other in frame.tx.frames):
        return True
    first, second = (_comes_to(frame.program, place, frame.at) for place in sides)
    return first != second


def _comes_to(program: Program, start: int, end: int) -> bool:
    """Whether instruction `end` may run after `start`."""
    pending: list[int] = [start]
    seen: set[Any] = {start}
    while pending:
        index = pending.pop()
        if index == end:
            return True
        fresh = [after for after in successors(program.model, index) if after not in seen]
        pending += fresh
        seen.update(fresh)
    return False
