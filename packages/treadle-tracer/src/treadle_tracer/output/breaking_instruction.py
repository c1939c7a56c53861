"""The instruction at which a graph break stands: what it sees of the operand stack, what it leaves there, and code that carries it out."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

from ..bytecode import OPS, Instruction, stack_kinds
from ..bytecode.assemble import CodeBuilder
from ..bytecode.opcodes import NULL_AFTER_CALLABLE
from ..values.base import NULL
from ..values.value import Value
from .left_frames import CALL_SLOTS, Handled, LeftFrame, Slot, kind_of, value_in
from .native_frames import Exhausted, NativeCode


def fused_jump(frame: LeftFrame) -> int | None:
    """The index of the jump that tests the only result of the instruction (`if f(x):`); the two are carried out together."""
    if kind_of(frame.instruction) != "plain" or OPS[frame.instruction.opname].ends:
        return None
    if pushed_slots(frame) != ["made 0"]:
        return None
    instructions = frame.model.instructions
    index = frame.index + 1
    index += instructions[index].opname == "TO_BOOL"
    return index if kind_of(instructions[index]) == "POP_JUMP" else None


def pushed_slots(frame: LeftFrame) -> list[Slot]:
    """Names for the slots above `untouched_slots` after a plain instruction, with the NULL of a callable where it belongs."""
    kinds = stack_kinds(frame.model)[frame.index + 1]
    assert kinds is not None
    made: list[Slot] = [f"made {slot}" for slot in range(len(kinds) - untouched_slots(frame))]
    if pushes_null(frame.instruction):
        made[-1 if NULL_AFTER_CALLABLE else -2] = NULL
    return made


def pushes_null(instruction: Instruction) -> bool:
    """Whether the instruction loads a callable together with the NULL (or self) of the call that follows."""
    name = instruction.opname
    return name == "LOAD_METHOD" or (name in _WITH_NULL_FLAG and bool(instruction.flag_bits & 1))


_WITH_NULL_FLAG = ("LOAD_ATTR", "LOAD_GLOBAL", "LOAD_SUPER_ATTR")
# The same loads without the NULL. A NULL cannot be an argument, so the continuation pushes it itself.
LOAD_WITHOUT_NULL: dict[str, Callable[[CodeBuilder, Instruction], None]] = {
    "LOAD_METHOD": lambda cb, i: cb.load_attr(i.argval),
    "LOAD_ATTR": lambda cb, i: cb.load_attr(i.argval),
    "LOAD_GLOBAL": lambda cb, i: cb.load_global(i.argval),
    "LOAD_SUPER_ATTR": lambda cb, i: cb.emit("LOAD_SUPER_ATTR", i.argval, arg=i.flag_bits & ~1),
}


def untouched_slots(frame: LeftFrame) -> int:
    """The number of slots at the bottom of the stack that the instruction does not see: up to the last NULL of an enclosing call, or up
    to the last handled exception."""
    if frame.instruction.opname == "WITH_EXCEPT_START":
        return len(frame.stack)
    slots = CALL_SLOTS.get(frame.instruction.opname)
    below = len(frame.stack) - (slots(frame.instruction.arg or 0) if slots is not None else 0)
    unseen = [i for i in range(below) if frame.stack[i] is NULL or isinstance(frame.stack[i], Handled)]
    return unseen[-1] + 1 if unseen else 0


def result_names(frame: LeftFrame) -> list[str]:
    """The names of `pushed_slots` alone, bottom up."""
    return [slot for slot in pushed_slots(frame) if isinstance(slot, str)]


def leaving_by_exception(frame: LeftFrame) -> list[Value]:
    """What WITH_EXCEPT_START uses of its four slots: __exit__, the instruction that raised, what was handled before, the exception."""
    return [value_in(frame.stack[-4]), value_in(frame.stack[-1])]


def leave_by_exception(leave: Callable[..., Any], error: BaseException) -> Any:
    """What WITH_EXCEPT_START does."""
    return leave(type(error), error, error.__traceback__)


def condition(instruction: Instruction) -> str:
    return instruction.opname.partition("_IF_")[2].removesuffix("_OR_POP")


BRANCHES: dict[str, Callable[[CodeBuilder, Any], None]] = {
    "TRUE": lambda cb, label: cb.pop_jump_if_true(label),
    "FALSE": lambda cb, label: cb.pop_jump_if_false(label),
    "NONE": lambda cb, label: cb.pop_jump_if_none(label),
    "NOT_NONE": lambda cb, label: cb.pop_jump_if_not_none(label),
}


def native_code(frame: LeftFrame) -> tuple[CodeType, list[Value]]:
    """The code that carries out the instruction, as the innermost function would, and the operands to call it with.

    It gives back the result of the instruction, a tuple if there are several; of a jump, whether it jumps; of FOR_ITER, the item or
    Exhausted.
    """
    kind, opname = kind_of(frame.instruction), frame.instruction.opname
    if opname == "WITH_EXCEPT_START":
        operands: list[Any] = leaving_by_exception(frame)
    elif kind == "plain":
        operands = [slot if slot is NULL else value_in(slot) for slot in frame.stack[untouched_slots(frame) :]]
    else:
        operands = [value_in(frame.stack[-1])]
    parameters = [f".operand{n}" for n, value in enumerate(operands) if value is not NULL]
    cb = NativeCode(frame.model, frame.instruction.positions, parameters)
    names = iter(parameters)
    if opname == "WITH_EXCEPT_START":
        cb.load_callable_const(leave_by_exception)
    for value in operands:
        if value is NULL:
            cb.push_null()
        else:
            cb.give(next(names))
    if kind == "FOR_ITER":
        _give_item(cb)
        return cb.made(), operands
    if kind != "plain":
        _give_condition(cb, frame.instruction)
    elif opname == "WITH_EXCEPT_START":
        cb.call(2)
        _give_results(cb, frame)
    elif pushes_null(frame.instruction):
        LOAD_WITHOUT_NULL[opname](cb, frame.instruction)
        _give_results(cb, frame)
    else:
        cb.extend(frame.whole)
        _give_results(cb, frame)
    return cb.made(), [value for value in operands if value is not NULL]


def _give_item(cb: NativeCode) -> None:
    end = cb.label("exhausted")
    cb.for_iter(end)
    cb.store_fast(".item")
    cb.pop_top()
    cb.load_fast(".item")
    cb.return_value()
    cb.end_for(end)
    cb.load_const(Exhausted)
    cb.return_value()


def _give_condition(cb: NativeCode, jump: Instruction) -> None:
    jumped = cb.label("jumped")
    BRANCHES[condition(jump)](cb, jumped)
    cb.load_const(False)
    cb.return_value()
    cb.place(jumped)
    cb.load_const(True)
    cb.return_value()


def _give_results(cb: NativeCode, frame: LeftFrame) -> None:
    if OPS[frame.instruction.opname].ends:
        return
    jump = fused_jump(frame)
    if jump is not None:
        _give_condition(cb, frame.model.instructions[jump])
        return
    count = len(result_names(frame))
    if not count:
        cb.load_const(None)
    elif count > 1:
        cb.build_tuple(count)
    cb.return_value()
