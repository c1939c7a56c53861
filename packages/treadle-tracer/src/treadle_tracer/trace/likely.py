"""Jumps on numbers known only at run time where one side only raises, prints, warns or logs: the graph checks that the other is taken.

    if (scale <= 0).any():                  # the graph asserts that it is false
        raise ValueError("scale")           # where the assert fails, Python runs the function from its start, and raises

So validation costs no graph break. The exception is eager's own, with all that the program has done before it. A side that only returns the
mask of what is valid counts as one that raises: its caller does. Which side is likely is a guess; the assert makes it safe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from treadle_shapes.expr import Not
from treadle_shapes.torch import raw_expr
from treadle_tracer.bytecode import successors
from treadle_tracer.errors import Empty, OtherPath
from treadle_tracer.trace.emptiness import truth_with_items, truth_with_true_items
from treadle_tracer.values.arrays import ArrayValue
from treadle_tracer.values.base import Constant
from treadle_tracer.values.outside_decisions import truth_of_tensor
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.tensor_numbers import truth_value
from treadle_tracer.values.unbacked import is_unbacked
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.trace.frame import Frame
    from treadle_tracer.trace.program import Program

_MOST_INSTRUCTIONS = 400
_LEAVES = frozenset({"RETURN_VALUE", "RETURN_CONST", "YIELD_VALUE", "RETURN_GENERATOR"})
_RAISES = frozenset({"RAISE_VARARGS", "RERAISE"})
_STORES = ("STORE_", "DELETE_")
_NAMES = ("LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD")
_WARNS = frozenset({"warn", "warnings", "warning"})
_TELLS = frozenset({"print", "warn", "warnings", "logging", "logger", "log", "debug", "info", "warning", "error"})


def likely_truth(frame: Frame, value: Value, when: bool, target: int) -> bool | None:
    """The truth of `value` that the graph asserts, or that is known; None where the jump must read it.

    The jump goes to `target` if the truth is `when`.
    """
    tx = frame.tx
    if tx.speculation is not None or tx.modes.ask or not tx.symbols.guesses or not _is_unknown(frame, value):
        return None
    sides = {when: target, not when: frame.pc}
    unlikely = [truth for truth, place in sides.items() if _is_unlikely(frame, place)]
    likely, otherwise = (not unlikely[0], OtherPath) if len(unlikely) == 1 else (None, Empty)
    if likely is None:
        ask = truth_with_true_items if type(value) is TensorValue else truth_with_items
        likely = ask(frame, value, (sides[True], sides[False]))
    if likely is None:
        return None
    decided = truth_of_tensor(tx, value) if type(value) is TensorValue else None
    if decided is not None:
        return decided
    number = truth_value(tx, value)
    if number is None or isinstance(number, Constant):
        return None if number is None else number.truth(tx)
    condition = raw_expr(number.sym)  # type: ignore[attr-defined]
    known = tx.symbols.env.prove(condition)
    if known is None:
        known = tx.symbols.env.ask_oracle(condition)
    if known is not None:
        return known
    tx.symbols.unbacked.write_asserts(tx, complete=True)
    file, line, _ = frame.position()
    tx.symbols.unbacked.state(tx, condition if likely else Not(condition), f"the branch at {file}:{line}", otherwise)
    return likely


def _is_unknown(frame: Frame, value: Value) -> bool:
    if isinstance(value, ArrayValue):
        return value.ndim == 0
    if isinstance(value, TensorValue):
        count = value.fake.numel()
        return isinstance(count, int) and count == 1
    return is_unbacked(frame.tx, value)


def _is_unlikely(frame: Frame, place: int) -> bool:
    program = frame.program
    return (
        only_raises_or_warns(program, place)
        or only_tells(program, place, program.join_of(frame.at))
        or _returns_mask(frame, place)
    )


def _returns_mask(frame: Frame, place: int) -> bool:
    """Whether the path is `return valid`, where `valid` is a tensor of bools: a check that has found what is wrong, and looks no further.

    if not valid.all():
        return valid
    """
    instructions = [i for i in frame.program.model.instructions[place : place + 3] if i.opname != "NOP"]
    if len(instructions) < 2 or not instructions[0].opname.startswith("LOAD_FAST"):
        return False
    value = frame.locals.get(instructions[0].argval) if instructions[1].opname == "RETURN_VALUE" else None
    return isinstance(value, TensorValue) and value.fake.dtype is torch.bool


def only_raises_or_warns(program: Program, place: int) -> bool:
    """Whether every path from this instruction ends in a `raise` that leaves the function, or names a function that warns.

    for attempt in range(3):
        warnings.warn("not positive definite")      # what runs behind it was not expected to
        ...
    raise ValueError("not positive definite")
    """
    model, pending, seen = program.model, [place], {place}
    while pending:
        index = pending.pop()
        name = model.instructions[index].opname
        if name in _LEAVES or len(seen) > _MOST_INSTRUCTIONS:
            return False
        if name in _RAISES:
            if _is_caught(program, index):
                return False
            continue
        if name.startswith(_NAMES) and model.instructions[index].argval in _WARNS:
            continue
        fresh = [after for after in successors(model, index) if after not in seen]
        pending += fresh
        seen.update(fresh)
    return True


def _is_caught(program: Program, index: int) -> bool:
    """Whether the function itself may handle what is raised there."""
    entry = program.handled_at[index]
    while entry is not None:
        if not program.raises_again(entry.target):
            return True
        entry = program.outer(entry)
    return False


def only_tells(program: Program, place: int, end: int | None) -> bool:
    """Whether the instructions from `place` to `end` store nothing and name a function that prints, warns or logs, as far as names tell."""
    if end is None or place == end:
        return False
    model, pending, seen, tells = program.model, [place], {place}, False
    while pending:
        index = pending.pop()
        instruction = model.instructions[index]
        if instruction.opname in _LEAVES or instruction.opname.startswith(_STORES) or len(seen) > _MOST_INSTRUCTIONS:
            return False
        tells = tells or (instruction.opname.startswith("LOAD_") and instruction.argval in _TELLS)
        fresh = [after for after in successors(model, index) if after not in seen and after != end]
        pending += fresh
        seen.update(fresh)
    return tells
