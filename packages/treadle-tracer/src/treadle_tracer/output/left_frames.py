"""The frames that a graph break leaves, and the continuations in which they go on.

    def g(y):              left at print(y), called by f      def rest_of_g(y): return y * 3
        print(y)                                              def rest_of_f(x, rest, args): return rest(*args) + x
        return y * 3                                              # called as rest_of_f(x, rest_of_g, (y,))
    def f(x):
        return g(x * 2) + x

The continuation of a frame that waits for a call stands in the middle of that call: it calls the continuation of the called function, so
that the rest of both is traced as one.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any

from ..bytecode import OPS, ArgKind, CodeModel, Instruction, SlotKind, live_locals, stack_kinds
from ..bytecode.splice import Continuation, restart_index, why_not_cut
from ..errors import Unsupported
from ..values.base import NULL, ConcreteValue, settled
from ..values.finalizers import HOLDING_ITERATORS, MadeWithFinalizer, has_finalizer
from ..values.value import Value
from .continuations import family_of, index_in_original, resumed_call_at

if TYPE_CHECKING:
    from ..trace.result import TraceResult
    from ..values.functions import FunctionValue

# Callables that read the frame that calls them. In a replacement frame they would see its variables.
FRAME_READERS: tuple[Any, ...] = (
    *(locals, vars, dir, eval, exec, super),
    *(sys._getframe, inspect.currentframe, inspect.stack, inspect.trace),
)

# Slots that a call instruction takes off the stack.
CALL_SLOTS: dict[str, Callable[[int], int]] = {
    "CALL": lambda arg: arg + 2,  # callable or method, NULL or self
    "CALL_KW": lambda arg: arg + 3,
    "CALL_FUNCTION_EX": lambda arg: 3 + (arg & 1),
}
# Instructions on the slots that hold what was handled before.
_EXCEPTION_STATE = frozenset(
    {"PUSH_EXC_INFO", "POP_EXCEPT", "RERAISE", "CHECK_EG_MATCH", "END_ASYNC_FOR", "CLEANUP_THROW"}
)
# What follows a call whose result the frame keeps, or uses in an instruction at which it can be left.
_KEEPS_IN_FRAME = ("STORE_FAST", "POP_TOP", "GET_ITER", "LOAD_ATTR", "LOAD_METHOD")
# Kinds of instructions that jump and can be carried out in other code.
JUMPS = ("POP_JUMP", "JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP", "FOR_ITER")
# Instructions that do nothing but bind a variable of the frame: its continuation is called with the variable as it is then.
BINDINGS = ("STORE_FAST", "DELETE_FAST")


@dataclass(frozen=True)
class Handled:
    """The stack slot in which PUSH_EXC_INFO has saved what was handled before `exception`."""

    exception: Value


Slot = Value | str | Handled
"""A slot of a continuation's stack: a value of the trace, the name of a result of the breaking instruction, or an exception to handle."""


@dataclass(frozen=True)
class Exit:
    """One way out of the breaking instruction: a continuation, its operand stack with the NULLs in it, and its locals.

    function  the called function that it is the rest of; None for the compiled frame
    inner     what it calls in the middle of the call at which it stands; None if it does not stand in a call
    """

    target: Continuation
    stack: tuple[Slot, ...]
    locals: tuple[Slot, ...]
    function: FunctionValue | None
    inner: Exit | None = None

    def slots(self) -> Iterable[Slot]:
        """All that it is called with, in this order; the NULLs of its stack are no arguments."""
        return (*self.locals, *(slot for slot in self.stack if slot is not NULL))


class LeftFrame:
    """A frame at the break. Its place is given in the terms of the function that its continuations are cut from.

    index        the instruction; the call for a frame that waits for one
    instruction  what stands there in the code that runs, which may be a continuation's call of what it was given
    whole        the instructions that are carried out with it
    stack        the stack before the instruction; below the callable, for a frame that waits for a call
    """

    def __init__(
        self,
        code: CodeType,
        running: CodeModel,
        at: int,
        stack: list[Value | Handled],
        variables: Mapping[str, Value],
        function: FunctionValue | None,
    ):
        family, index = family_of(code, running), index_in_original(code, running, at)
        if family is None or index < 0:
            why = "the original function is gone, or the break is in what the continuation itself adds"
            raise CannotResume(why)
        self.family, self.function, self.stack = family, function, stack
        self.model = model = family.model
        self.known: Mapping[str, Slot] = variables
        self.index: int = whole_call(model, index)
        self.resumes = resumed_call_at(code) == at
        self.whole: Sequence[Instruction] = model.instructions[restart_index(model, self.index) : self.index + 1]
        if self.resumes:
            self.whole = running.instructions[at : at + 1]
        self.instruction: Instruction = self.whole[-1]
        self.handled = [slot.exception for slot in stack if isinstance(slot, Handled)]

    def why_not_leave(self) -> str | None:
        """Why the instruction cannot be carried out elsewhere."""
        if self.resumes:
            return why_not_cut(self.model, self.index + 1)
        if kind_of(self.instruction) in BINDINGS and self.function is None:
            return why_not_cut(self.model, self.index + 1)
        return why_not_resume(self.model, self.index, [value_in(slot) for slot in self.stack])

    def exit_at(
        self, index: int, stack: Sequence[Slot], made: Mapping[str, Slot] | None = None, deleted: str | None = None
    ) -> Exit:
        """The continuation from `index` on with this stack. made, deleted: locals that the breaking instruction has bound."""
        kinds = tuple(map(_kind_of_slot, stack))
        known: dict[str, Slot] = {**self.known, **(made or {})}
        known.pop(deleted or "", None)
        names = self._passed(live_locals(self.model, index), known)
        target = self.family.member(index, names, kinds, called=self.function is not None)
        return Exit(target, tuple(stack), tuple(known[name] for name in target.variables), self.function)

    def exit_calling(self, inner: Exit) -> Exit:
        """The continuation in the middle of the call at which the frame stands, with `inner` in place of what it has called."""
        names = self._passed(live_locals(self.model, self.index), self.known)
        kinds = tuple(map(_kind_of_slot, self.stack))
        called = self.function is not None
        target = self.family.resumed_call(self.index, names, kinds, inner.target.code, called=called)
        variables = tuple(self.known[name] for name in target.variables)
        return Exit(target, tuple(self.stack), variables, self.function, inner)

    def _passed(self, live: Sequence[str], known: Mapping[str, Slot]) -> tuple[str, ...]:
        """Live variables, and those that nothing reads any more but that keep an object alive whose death may run code of the program.

        Of what the breaking instruction has stored in a variable nothing is known.
        """
        own = self.model.localsplus[: len(self.model.localsplus) - len(self.model.freevars)]
        kept = [name for name in own if name not in live and name in known and _may_run_code(known[name])]
        return (*(name for name in live if name in known), *kept)


class CannotResume(Exception):
    """A frame cannot be left at its place; the argument says why."""


def left_frames(code: CodeType, model: CodeModel, result: TraceResult) -> list[LeftFrame]:
    """The frames of a break, the compiled one first.

    Raises Unsupported ("no-continuation") when one of them cannot be left.
    """
    places = [
        (frame.function.code, frame.model, frame.index, frame.stack, frame.locals | frame.cells, frame.function)
        for frame in result.inner
    ]
    places.insert(0, (code, model, result.index, result.stack, result.locals | result.cells, None))  # type: ignore[arg-type]
    frames: list[LeftFrame] = []
    current = result.handled
    try:
        for frame_code, running, at, values, variables, function in reversed(places):
            stack, current = _with_handled(frame_code, running, at, values, current, result)
            frames.insert(0, LeftFrame(frame_code, running, at, stack, variables, function))
        why = frames[-1].why_not_leave()
        for frame in frames[:-1]:
            why = why or why_not_cut(frame.model, frame.index + 1)
    except CannotResume as error:
        why = str(error)
    if why is None:
        return frames
    reason = result.reason
    assert reason is not None
    raise Unsupported("no-continuation", f"{why}; the break: {reason.code} {reason.context}", reason.user_stack)


def whole_call(model: CodeModel, index: int) -> int:
    """The CALL of a KW_NAMES or PRECALL. The three pass each other values outside the stack, so they run as one."""
    while model.instructions[index].opname in ("KW_NAMES", "PRECALL"):
        index += 1
    return index


def can_watch(made: MadeWithFinalizer, model: CodeModel, index: int, stack: Sequence[Value]) -> bool:
    """Whether what the call `index` makes stays on the operand stack or in a variable of the frame, or dies there or behind the frame.

    stack: the operand stack in front of the call, with its arguments
    """
    index = whole_call(model, index) + 1
    following = model.instructions[index].opname
    if following in ("POP_TOP", "RETURN_VALUE"):
        return True
    if following == "BEFORE_WITH":
        following = model.instructions[index + 1].opname
    return made.is_result and (following in _KEEPS_IN_FRAME or _is_iterated(model, index, stack))


def _is_iterated(model: CodeModel, index: int, stack: Sequence[Value]) -> bool:
    """Whether an iterator of C takes what the instruction in front of `index` makes, and only constants behind it:
    `enumerate(tqdm(batches), 1)`."""
    made, behind = model.instructions[index - 1], index
    while model.instructions[behind].opname == "LOAD_CONST":
        behind += 1
    call = model.instructions[whole_call(model, behind)]
    if made.opname not in CALL_SLOTS or call.opname != "CALL":
        return False
    below = stack[: -CALL_SLOTS[made.opname](made.arg or 0)]
    taken = below[-(CALL_SLOTS[call.opname](call.arg or 0) - 1 - (behind - index)) :][:2]
    return any(isinstance(value, ConcreteValue) and value.obj in HOLDING_ITERATORS for value in taken)


def why_not_resume(model: CodeModel, index: int, stack: Sequence[Value]) -> str | None:
    """Why the frame cannot be left at this instruction and resumed elsewhere."""
    index = whole_call(model, index)
    instruction = model.instructions[index]
    op = OPS[instruction.opname]
    if op.jumps and kind_of(instruction) not in JUMPS:
        return f"{instruction.opname} cannot be carried out outside its own code"
    if op.name in ("PUSH_NULL", "SWAP", "COPY"):
        return f"{op.name} may move a NULL, which cannot be an argument of a continuation"
    if op.name in _EXCEPTION_STATE:
        return f"{op.name} changes which exception is being handled"
    if op.kind in (ArgKind.LOCAL, ArgKind.LOCAL_PAIR, ArgKind.FREE):
        return f"{instruction.opname} works on the frame's own variables"
    if op.name in CALL_SLOTS:
        for value in stack[-CALL_SLOTS[op.name](instruction.arg or 0) :][:2]:
            if isinstance(value, ConcreteValue) and any(value.obj is reader for reader in FRAME_READERS):
                return f"{value.obj.__name__}() looks at the frame that calls it"
    following = index + 1
    return None if op.jumps or op.ends else why_not_cut(model, following)


def kind_of(instruction: Instruction) -> str:
    """One of JUMPS or BINDINGS, or "plain"."""
    name = instruction.opname
    if name in BINDINGS:
        return name
    if name.startswith("POP_JUMP"):
        return "POP_JUMP"
    return name if OPS[name].jumps else "plain"


def _with_handled(
    code: CodeType, running: CodeModel, at: int, values: list[Value], current: Value | None, result: TraceResult
) -> tuple[list[Value | Handled], Value | None]:
    """The operand stack and what the caller of the frame is handling. `current`: what the frame is handling.

    Where PUSH_EXC_INFO has saved the exception handled before, the stack holds the exception handled from there on.
    """
    stack: list[Value | Handled] = [settled(value) for value in values]
    kinds = (stack_kinds(running)[at] or ())[: len(stack)]
    for position in reversed([i for i, kind in enumerate(kinds) if kind is SlotKind.HANDLED]):
        if current is None or result.was_raised(current):
            raise CannotResume("an exception that was raised in the trace is being handled")
        stack[position], current = Handled(current), settled(values[position])
    return stack, current


def _may_run_code(slot: Slot) -> bool:
    """Whether the death of what a variable holds may run code of the program."""
    if not isinstance(slot, Value):
        return True
    cls = slot.python_type()
    return cls is types.GeneratorType or has_finalizer(cls)


def _kind_of_slot(slot: Slot) -> SlotKind:
    return SlotKind.NULL if slot is NULL else SlotKind.HANDLED if isinstance(slot, Handled) else SlotKind.VALUE


def value_in(slot: Value | Handled) -> Value:
    """The value of the trace that a slot holds."""
    return slot.exception if isinstance(slot, Handled) else slot
