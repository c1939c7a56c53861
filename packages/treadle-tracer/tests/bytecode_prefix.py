"""The other half of a continuation: ``prefix`` runs a function up to an instruction and hands over what stands there.

def f(x):            prefix:        def f(x): y = x + 1; return Broken(stack=(), variables=(y,))
    y = x + 1
    # <- cut here    continuation:  def f(y): return y * 2
    return y * 2
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from treadle_tracer.bytecode import (
    BytecodeError,
    CodeBuilder,
    CodeModel,
    Instruction,
    SlotKind,
    live_locals,
    stack_depths,
    stack_kinds,
    write,
)
from treadle_tracer.bytecode.opcodes import CHECKED_LOADS
from treadle_tracer.bytecode.splice import _check_cut, _moved, _moved_entries, _retargeted, _stem


class Unbound:
    """The type of ``UNBOUND``."""

    def __repr__(self) -> str:
        return "UNBOUND"


UNBOUND = Unbound()
"""In a ``Broken``: a local without a value, or the C null in a stack slot."""


class Broken(NamedTuple):
    """What the code of ``prefix`` returns when it gets to the cut.

    ``stack``: the operand stack, bottom first; a HANDLED slot holds the exception being handled there.
    ``variables``: what stands in the slots of the variables asked for; for cells the cell objects.
    """

    stack: tuple[object, ...]
    variables: tuple[object, ...]


def prefix(
    model: CodeModel,
    index: int,
    *,
    variables: Iterable[str] | None = None,
    stack: Sequence[SlotKind] | None = None,
    name: str | None = None,
) -> types.CodeType:
    """The function up to instruction ``index``: code that returns a ``Broken`` when it gets there.

    It has signature, cells and free variables of the original and otherwise does and returns the same. ``variables`` (by
    default ``live_locals(model, index)``) says which variables the ``Broken`` holds, in this order; what is unbound
    is UNBOUND there, and so is a stack slot that holds the C null. ``stack`` as in ``continuation``; EITHER is allowed.
    """
    start = _check_cut(model, index)
    kinds = stack_kinds(model)[start] if stack is None else tuple(stack)
    if kinds is None or len(kinds) != stack_depths(model)[start]:
        raise BytecodeError(f"{model.qualname} has another number of stack slots at instruction {start} than {kinds}")
    wanted = tuple(live_locals(model, start) if variables is None else variables)
    stem = _stem(model.localsplus)
    extra = tuple(f"{stem}{slot}" for slot in range(len(kinds)))
    shape = model.replace(instructions=(), exceptions=(), varnames=model.varnames + extra, name=name or model.name)
    builder = CodeBuilder(shape, prologue=False)
    builder.positions = model.instructions[start].positions
    for slot in reversed(range(len(kinds))):
        _pop_slot(builder, extra[slot], kinds[slot])
    builder.load_callable_const(Broken)
    for slot in range(len(kinds)):
        _load_or_unbound(builder, "LOAD_FAST", extra[slot], 2 + slot)
    builder.build_tuple(len(kinds))
    for number, variable in enumerate(wanted):
        opname = "LOAD_CLOSURE" if variable in model.cellvars else "LOAD_FAST"
        _load_or_unbound(builder, opname, variable, 3 + number)
    builder.build_tuple(len(wanted))
    builder.call(2)
    builder.return_value()
    tail = builder.model()
    count = len(model.instructions)
    body = _moved(model.instructions, model, shape, dict(zip(range(count), range(count), strict=True)))
    body[start] = Instruction("JUMP_FORWARD", None, count, -1, builder.positions)
    behind = {i: count + i for i in range(len(tail.instructions))}
    exceptions = model.exceptions + _moved_entries(tail.exceptions, behind, behind)
    instructions = (*body, *(_retargeted(instruction, behind) for instruction in tail.instructions))
    return write(shape.replace(instructions=instructions, exceptions=exceptions))


def _pop_slot(builder: CodeBuilder, variable: str, kind: SlotKind) -> None:
    if kind is SlotKind.HANDLED:
        builder.load_callable_const(sys.exception)
        builder.call(0)
    builder.store_fast(variable)  # the only instruction that takes a null off
    if kind is SlotKind.HANDLED:
        builder.emit("POP_EXCEPT")


def _load_or_unbound(builder: CodeBuilder, opname: str, variable: str, depth: int) -> None:
    """Push a variable, or UNBOUND if it has no value; ``depth`` values are on the stack below."""
    start, end, handler, after = (builder.label(text) for text in ("start", "end", "handler", "after"))
    builder.place(start)
    builder.emit(CHECKED_LOADS.get(opname, opname), variable)
    builder.place(end)
    builder.jump(after)
    builder.place(handler)
    builder.emit("PUSH_EXC_INFO")
    builder.pop_top()
    builder.emit("POP_EXCEPT")
    builder.load_const(UNBOUND)
    builder.place(after)
    builder.nop()
    builder.protect(start, end, handler, depth=depth)
