"""Jumps that ask whether a size that depends on data is 0: the path of a size that is not 0 is taken, and the graph checks that it is.

    index = batch[mask]
    count = int(index.max()) + 1 if index.numel() > 0 else 0    # the graph asserts index.shape[0] >= 1

    if torch.any(inside):                                       # the graph asserts inside.any()
        out[inside] = spline(x[inside])

Programs ask this because most operators need an item; what is there to compute stands on the other side. Of a mask that is so only where
that side reads by it: what is repaired (`x[isnan] = 0`) is seldom there. Calls in which there is none run in Python. A jump that decides
whether a loop goes on is no such question: taken for granted, it would have no last iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from treadle_shapes.expr import Eq, Ge
from treadle_shapes.torch import raw_expr
from treadle_tracer.bytecode import successors
from treadle_tracer.values.tensor import SymbolicValue, TensorValue
from treadle_tracer.values.tensor_numbers import truth_value

if TYPE_CHECKING:
    from treadle_tracer.bytecode import Instruction
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
    mask = None
    if not all(tx.symbols.unbacked.is_size(s) for s in sizes):
        mask = _mask_counted_by(frame, sizes[0]) if len(sizes) == 1 else None
        if mask is None:
            return None
    some = tx.symbols.env.prove_under([Ge(s, 1) for s in sizes], condition)
    none = tx.symbols.env.prove_under([Eq(s, 0) for s in sizes], condition)
    if some is None or none is None or some == none or _may_go_on(frame, sides):
        return None
    if mask is not None and not _reads_by_mask(frame, mask, sides[not some]):
        return None
    return some


def truth_with_true_items(frame: Frame, value: Value, sides: tuple[int, int]) -> bool | None:
    """The truth of a tensor that asks whether a mask has an item that is True. None where it asks for something else, the side that is
    taken then does not read by the mask, or the jump to `sides` may end a loop."""
    if not frame.tx.symbols.expects_items or not isinstance(value, TensorValue):
        return None
    mask, some = _question_of(value.node(frame.tx))
    if mask is None or _may_go_on(frame, sides) or not _reads_by_mask(frame, mask, sides[not some]):
        return None
    return some


# ---- masks


def _question_of(node: fx.Node) -> tuple[fx.Node | None, bool]:
    """The mask of which a node asks whether it has an item, and the node's truth if it has; (None, True) if it asks for something else."""
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    if node.op not in ("call_method", "call_function") or not node.args or not isinstance(node.args[0], fx.Node):
        return None, True
    asked = node.args[0]
    if name in _COUNTS:
        return (asked if asked.meta["example_value"].dtype is torch.bool else None), True
    if name in _NEGATIONS:
        mask, truth = _question_of(asked)
        return mask, not truth
    holds = _COMPARISONS.get((name, node.args[1])) if len(node.args) == 2 and type(node.args[1]) is int else None
    if holds is None:
        return None, True
    mask, truth = _question_of(asked)
    return mask, holds is truth


_COUNTS = frozenset({"any", "sum", "count_nonzero"})
_NEGATIONS = frozenset({"logical_not", "invert", "bitwise_not"})
_COMPARISONS = {("gt", 0): True, ("ge", 1): True, ("ne", 0): True, ("eq", 0): False, ("lt", 1): False, ("le", 0): False}


def _mask_counted_by(frame: Frame, symbol: Any) -> fx.Node | None:
    """The mask whose items that are True the symbol counts (`mask.sum().item()`), or of which it says whether there is one."""
    node = frame.tx.symbols.unbacked.number_node(frame.tx, symbol)
    if node is None or node.target != "item" or not isinstance(node.args[0], fx.Node):
        return None
    mask, truth = _question_of(node.args[0])
    return mask if truth else None


def _reads_by_mask(frame: Frame, mask: fx.Node, place: int) -> bool:
    """Whether a tensor may be indexed by the mask on the way from `place` to the point where the sides meet: `x[mask]`, `x[mask, 1:]`."""
    names = {name for name, v in frame.locals.items() if isinstance(v, TensorValue) and v.node(frame.tx) is mask}
    model, end = frame.program.model, frame.program.join_of(frame.at)
    pending, seen = [place], {place}
    while pending and names:
        index = pending.pop()
        if index == end:
            continue
        if _loads(model.instructions[index], names) and _is_read_by(
            model.instructions[index + 1 : index + _LONGEST_KEY]
        ):
            return True
        fresh = [after for after in successors(model, index) if after not in seen]
        pending += fresh
        seen.update(fresh)
    return False


_LONGEST_KEY = 16  # instructions


def _loads(instruction: Instruction, names: set[str]) -> bool:
    """Whether the last variable that the instruction loads is one of these."""
    loaded = instruction.argval if instruction.opname.startswith("LOAD_FAST") else None
    return (loaded[-1] if isinstance(loaded, tuple) else loaded) in names


def _is_read_by(following: Sequence[Instruction]) -> bool:
    """Whether the value on the stack is, or is part of, the key of a subscript that is read, or its places are asked for."""
    for position, instruction in enumerate(following):
        if instruction.opname == "BINARY_SUBSCR":
            return True
        if position == 0 and instruction.opname in ("LOAD_METHOD", "LOAD_ATTR"):
            return instruction.argval in ("nonzero", "argwhere")
        if not instruction.opname.startswith(("LOAD_CONST", "LOAD_FAST", "BUILD_SLICE", "BUILD_TUPLE")):
            return False
    return False


# ---- loops


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
