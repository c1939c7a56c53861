"""Frames: the stack and variables of a function being evaluated, and the loop that evaluates its instructions."""

from __future__ import annotations

import builtins
import contextlib
import inspect
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle_shapes import UnbackedError
from treadle_tracer.bytecode.opcodes import NULL_AFTER_CALLABLE, OPS
from treadle_tracer.class_facts import is_subtype, module_of, stands_in_its_module
from treadle_tracer.errors import BreakReached, Unsupported
from treadle_tracer.trace.break_depth import steps_to_leave
from treadle_tracer.values.base import NULL, Constant, LazyValue
from treadle_tracer.values.cells import CellValue
from treadle_tracer.values.functions import BoundMethod, ClassValue
from treadle_tracer.values.objects import SuperValue
from treadle_tracer.values.tail_calls import tail_call
from treadle_tracer.values.unbacked import refusal
from treadle_tracer.values.value import NotConstant, Raised, Value

if TYPE_CHECKING:
    from treadle_tracer.bytecode import CodeModel, Instruction
    from treadle_tracer.trace.program import Program
    from treadle_tracer.trace.tracer import Tracer
    from treadle_tracer.values.functions import FunctionValue
    from treadle_tracer.values.mappings import DictValue

SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
"""Flags of code whose frames may stop in the middle."""


class Frame:
    """One function being evaluated.

    function  what has been called; None in the root frame
    arguments what it has been called with; None where that is not asked
    began     the number of instructions that the trace had evaluated before, in all frames
    step      the number of the present instruction among those
    """

    def __init__(self, tx: Tracer, program: Program, function_code: types.CodeType, globals_: dict[str, Any]):
        self.tx = tx
        self.program = program
        self.instructions = program.model.instructions
        self.function_code = function_code
        self.globals = globals_
        self.locals: dict[str, Value] = {}
        self.cells: dict[str, CellValue] = {}
        self.cell_names = frozenset((*program.model.cellvars, *program.model.freevars))
        self.stack: list[Value] = []
        self.function: FunctionValue | None = None
        self.arguments: tuple[Value, ...] | None = None
        self.pc = 0
        self.at = 0
        self.began = tx.step
        self.step = 0
        self.keyword_names: tuple[str, ...] = ()
        self.stop_at: int | None = None
        self.result: Value | None = None
        self.yielded: Value | None = None
        self.name = program.model.name
        self.locals_dict: DictValue | None = None  # what `locals()` has given
        self.namespace: Value | None = None  # holds the variables of the body of a class
        self.called: tuple[int, Value | None] = (-1, None)  # the last call instruction, and what it has called
        self.shows_itself = True  # False: the program has another frame in its place
        self.frames_between: int | None = 0  # see `values.value.FrameView`
        self.restores = False  # a graph call was traced under a `finally` that is expected to restore state

    # ---- for handlers

    def load_local(self, name: str) -> Value:
        value = self.locals.get(name)
        if value is None:
            cell = self.cells.get(name)
            if cell is not None:
                return cell
            self.tx.raise_exception(
                UnboundLocalError, f"cannot access local variable {name!r} where it is not associated with a value"
            )
        if value.__class__ is LazyValue:
            value = self.locals[name] = value.force(self.tx)  # type: ignore[attr-defined]
        return value

    @property
    def module_name(self) -> str:
        """The name of the module whose code this is."""
        return str(self.globals.get("__name__", ""))

    def named_locals(self) -> dict[str, Value]:
        """The contents of `locals()`: bound variables in slot order, cells by their contents."""
        bound: dict[str, Value] = {}
        for name in self.program.model.localsplus:
            value = self.cells[name].load(self.tx) if name in self.cells else self.locals.get(name)
            if value is not None:
                bound[name] = value.force(self.tx) if isinstance(value, LazyValue) else value
        return bound

    @property
    def local_names(self) -> tuple[str, ...]:
        """The names of all variables of the function, cells included."""
        return tuple(self.program.model.localsplus)

    @property
    def next_opname(self) -> str:
        """What the frame does with the result of the present instruction."""
        return self.instructions[self.at + 1].opname

    def implicit_super(self) -> Value:
        """`super()` without arguments."""
        tx, code = self.tx, self.function_code
        cell = self.cells.get("__class__")
        if cell is None or not code.co_argcount:
            tx.raise_exception(RuntimeError, "super(): no arguments")
        name = code.co_varnames[0]
        instance = self.cells[name].load(tx) if name in self.cells else self.load_local(name)
        cls = cell.load(tx)
        assert isinstance(cls, ClassValue)
        if instance is None:
            tx.raise_exception(RuntimeError, "super(): arg[0] deleted")
        return SuperValue.make(tx, cls, instance)

    def push_callable(self, value: Value, with_null: int) -> None:
        """Push a callable and, when asked, the NULL that goes with it."""
        if not with_null:
            self.stack.append(value)
        elif NULL_AFTER_CALLABLE:
            self.stack += (value, NULL)
        else:
            self.stack += (NULL, value)

    def pop_many(self, count: int) -> list[Value]:
        if not count:
            return []
        items = self.stack[-count:]
        del self.stack[-count:]
        return items

    def position(self) -> tuple[str, int, str]:
        """(file, line, function) of the instruction being evaluated."""
        model = self.program.model
        return model.filename, self.instructions[self.at].line or model.firstlineno, model.name

    @property
    def model(self) -> CodeModel:
        """The code."""
        return self.program.model

    def delegate(self) -> Value | None:
        """Of a suspended generator or coroutine: the iterator of the `yield from` or `await` in which it stands."""
        following = [i.opname for i in self.instructions[self.at + 1 : self.at + 3]]
        return self.stack[-1] if following == ["RESUME", "JUMP_BACKWARD_NO_INTERRUPT"] else None

    def end_delegation(self, result: Value) -> None:
        """Go on behind the `yield from` or `await` in which the frame stands, which has this value."""
        self.leave_send(self.instructions[self.instructions[self.at + 2].argval], result)

    def leave_send(self, send: Instruction, result: Value) -> None:
        """The end of SEND, whose iterator is exhausted: push its result and jump."""
        if OPS["SEND"].jump_effect == -1:
            self.stack.pop()
        self.stack.append(result)
        self.pc = send.argval

    def closes_with_effects(self) -> bool:
        """Of a suspended generator: whether closing it would run a handler of the program."""
        entry = self.program.handled_at[self.at]
        while entry is not None:
            if self.model.ends_delegation(entry):
                entry = self.program.handled_at[entry.target]
            elif self.model.converts_stop_iteration(entry) or self._only_catches_errors(entry.target):
                entry = self.program.outer(entry)
            else:
                return True
        return False

    def _only_catches_errors(self, handler: int) -> bool:
        """Whether a handler is `except X:` of one built-in subclass of Exception, which the GeneratorExit of a close() passes by."""
        begin = self.instructions[handler : handler + 4]
        if [i.opname for i in begin[:3]] != ["PUSH_EXC_INFO", "LOAD_GLOBAL", "CHECK_EXC_MATCH"]:
            return False
        _, load, _, jump = begin
        if jump.target is None or self.instructions[jump.target].opname != "RERAISE":
            return False
        if load.argval in self.globals or not hasattr(builtins, load.argval):
            return False
        caught = self.tx.load_global(self.globals, load.argval)
        return isinstance(caught, ClassValue) and is_subtype(caught.obj, Exception)

    # ---- the loop

    def run(self) -> None:
        """Evaluate up to the next return or yield. Raises BreakReached before step `break_at` of the trace."""
        tx = self.tx
        if tx.speculation is not None:
            tx.speculation.run(self)
            return
        steps, last, patience = self.program.steps, tx.break_at, tx.patience
        while True:
            at = self.at = self.pc
            self.step = step = tx.step
            if step == last:
                tx.note_break()
                raise BreakReached
            tx.step = step + 1
            self.pc = at + 1
            handler, instruction = steps[at]
            try:
                if step >= patience.ends_at:
                    tx.check_patience(step)
                if handler(self, instruction):
                    return
            except Raised as raised:
                again = raises_again(instruction)
                tx.note_raised(raised.value, again)
                if not raised.steps and tx.speculation is None and self.program.handled_at[at] is None:
                    raised.steps = steps_to_leave(tx.frames, _LOOPS)
                self.handle(raised, at)
                if not again:
                    tx.caught.append(raised.value)
            except Unsupported as error:
                self.located(error)
                raise
            except UnbackedError as error:
                raise self.located(refusal(tx, error)) from None
            except NotConstant as error:
                raise self.located(Unsupported("not-constant", error.value.describe())) from None

    def located(self, error: Unsupported) -> Unsupported:
        """The error with the place in the program, where it has none yet: this frame has carried out the instruction that failed."""
        tx = self.tx
        if not error.user_stack:
            error.user_stack = tx.user_stack()
        if not error.steps and tx.speculation is None:
            error.steps = steps_to_leave(tx.frames, _LOOPS)[: error.most_frames]  # type: ignore[arg-type]
        return error

    def spreads_keywords(self) -> bool:
        """Whether the present instruction is a call with `**kwargs`."""
        instruction = self.instructions[self.at]
        return instruction.opname == "CALL_FUNCTION_EX" and bool((instruction.arg or 0) & 1)

    def break_step(self) -> int:
        """The step to stop before: the present one, or that of the KW_NAMES or PRECALL that began its call."""
        step, at = self.step, self.at
        while at > 0 and self.instructions[at - 1].opname in ("KW_NAMES", "PRECALL"):
            step, at = step - 1, at - 1
        return step

    def handle(self, raised: Raised, at: int) -> None:
        """Continue in the exception handler that covers instruction `at`, or let the exception leave the frame."""
        entry = self.program.handled_at[at]
        if entry is None:
            try:
                raise raised
            finally:
                del raised  # its traceback holds this frame, and so all that the trace has looked at
        self.keyword_names = ()
        del self.stack[entry.depth :]
        if entry.lasti:
            self.stack.append(Constant(at))
        self.stack.append(raised.value)
        self.pc = entry.target

    @tail_call
    def call(self) -> Value:
        """Evaluate the whole frame as a call."""
        tx = self.tx
        tx.frames.append(self)
        handled = tx.exception
        protection = self._enter_protection()
        before = tx.mutations.snapshot() if self.program.model.exceptions else None
        try:
            self.run()
            self.check_restored(before)
        except BreakReached:
            self.check_restored(before)
            raise
        finally:
            tx.frames.pop()
            tx.exception = handled
            tx.protected -= protection
        assert self.result is not None
        return self.result

    def _enter_protection(self) -> int:
        """Count the caller's exception handlers around this call."""
        frames = self.tx.frames
        if len(frames) < 2:
            return 0
        caller = frames[-2]
        covered = int(caller.is_protected())
        self.tx.protected += covered
        return covered

    def is_protected(self) -> bool:
        """Whether the traced program could see an exception at the present instruction before it leaves the frame.

        `with` statements of PyTorch's own context managers and of `nullcontext`, and `finally` blocks in PyTorch's own code, do not
        count, because they only restore state. Other `finally` blocks do not if that shows at the end of the call (`restores`). Nor
        does a handler of Python's own (`CodeModel.converts_stop_iteration`).
        """
        entry = self.program.handled_at[self.at]
        while entry is not None:
            if self.model.converts_stop_iteration(entry) or self._only_restores(entry.target):
                entry = self.program.outer(entry)
                continue
            following = self.instructions[entry.target + 1]
            if following.opname != "WITH_EXCEPT_START" or len(self.stack) < entry.depth:
                return True
            leave = self.stack[entry.depth - 1]
            if not isinstance(leave, BoundMethod) or not _only_restores_state(leave.instance.python_type()):
                return True
            entry = self.program.outer(entry)
        return False

    def _only_restores(self, handler: int) -> bool:
        """Whether the handler is that of a `finally` that restores state, as far as is known before it has run."""
        if not self.program.raises_again(handler):
            return False
        if self.module_name.partition(".")[0] != "torch":
            if self.tx.separates or self.function_code.co_flags & SUSPENDED:
                return False
            self.restores = True
        return True

    def check_restored(self, before: Any) -> None:
        """At the end of the call: the `finally` blocks that were passed over count after all unless all state is as it was `before`."""
        if self.restores and not self.tx.is_as_before(before):
            self.tx.was_protected = True

    def resume(self, thrown: Value | None) -> None:
        """One step of a generator frame: to the next yield or its end; `thrown` is raised where it stands."""
        self.yielded = None
        self.tx.frames.append(self)
        try:
            if thrown is not None:
                self.handle(Raised(thrown), self.at)
            self.run()
        finally:
            self.tx.frames.pop()


def raises_again(instruction: Instruction) -> bool:
    """Whether an exception that the instruction raises keeps the traceback it has: RERAISE, and `raise` alone."""
    return instruction.opname == "RERAISE" or (instruction.opname == "RAISE_VARARGS" and not instruction.arg)


def _only_restores_state(manager: type) -> bool:
    """Whether leaving the context manager by an exception does no more than restore PyTorch's state."""
    return manager is contextlib.nullcontext or (
        str(module_of(manager)).partition(".")[0] == "torch" and stands_in_its_module(manager)
    )


_LOOPS = {Frame.run.__code__}


def evaluates_frames(run: Callable[[Any], None]) -> Callable[[Any], None]:
    """Mark the method of a subclass that evaluates the instructions of a frame in place of `Frame.run`."""
    _LOOPS.add(run.__code__)
    return run
