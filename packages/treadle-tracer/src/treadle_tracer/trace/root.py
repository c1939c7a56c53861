"""The root frame with its graph breaks, and calls evaluated in place."""

from __future__ import annotations

import types
from collections.abc import Mapping, MutableMapping
from types import CodeType
from typing import TYPE_CHECKING, Any

from torch.utils.weak import WeakIdKeyDictionary

from treadle_shapes import UnbackedError
from treadle_tracer.bytecode import CodeModel, Instruction, read
from treadle_tracer.errors import InternalError, Unsupported
from treadle_tracer.room import room_to_recurse
from treadle_tracer.source import CellContentsSource, ClosureCellSource, ClosureSource, LocalSource, Source
from treadle_tracer.trace.bind import bind_arguments
from treadle_tracer.trace.frame import Frame
from treadle_tracer.trace.program import Program
from treadle_tracer.trace.result import TraceResult
from treadle_tracer.trace.table import HANDLERS
from treadle_tracer.trace.tracer import Tracer
from treadle_tracer.values.base import LazyValue
from treadle_tracer.values.functions import FunctionValue, wrap_cell
from treadle_tracer.values.generators import GeneratorValue
from treadle_tracer.values.unbacked import refusal
from treadle_tracer.values.value import NotConstant, Raised, Value

if TYPE_CHECKING:
    import treadle_frame
    from treadle_tracer.options import TracerOptions

_CO_GENERATOR = 0x20
_CO_ASYNC = 0x80 | 0x200


_programs: MutableMapping[CodeType, Program] = WeakIdKeyDictionary()


def program_of(code: types.CodeType) -> Program:
    """The program of a code object, read once."""
    found = _programs.get(code)
    if found is None:
        found = _programs[code] = Program(read(code), HANDLERS)
    return found


def inline_call(tx: Tracer, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Evaluate a call of a Python function in place; of a generator function: the generator."""
    code = function.code
    if code.co_flags & _CO_ASYNC:
        raise Unsupported("async", function.describe())
    bound = bind_arguments(tx, function, args, kwargs)
    frame = Frame(tx, program_of(code), code, function.globals)
    frame.locals = bound
    frame.cells = dict(zip(code.co_freevars, function.closure, strict=True))
    if code.co_flags & _CO_GENERATOR:
        made = GeneratorValue(frame, function, getattr(tx.frames[0], "at", -1) if tx.frames else -1)
        tx.generators.append(made)
        return made
    return frame.call()


# ---- the root frame


class RootFrame(Frame):
    """The frame that is compiled. It stops before step `break_at`, counted in executed instructions, and at instruction `stop_at`."""

    def __init__(self, *args: Any, break_at: int | None = None, stop_at: int | None = None):
        super().__init__(*args)
        self.break_at = break_at
        self.stop_at = stop_at
        self.step = 0
        self.broken = False
        self.arguments: dict[str, Value] = {}
        self.raised: list[tuple[Value, int]] = []

    def run(self) -> None:
        steps = self.program.steps
        while True:
            at = self.at = self.pc
            if self.step == self.break_at or at == self.stop_at:
                self.broken = True
                return
            self.step += 1
            self.pc = at + 1
            handler, instruction = steps[at]
            try:
                if handler(self, instruction):
                    return
            except Raised as raised:
                if self.program.handled_at[at] is None:
                    raise Unsupported("raises", _describe_exception(raised), self.tx.user_stack()) from raised
                if not _raises_again(instruction):
                    self.raised.append((raised.value, at))
                self.handle(raised, at)
            except UnbackedError as error:
                raise refusal(self.tx, error) from None
            except NotConstant as error:
                raise Unsupported("not-constant", error.value.describe(), self.tx.user_stack()) from None
            except Unsupported as error:
                if not error.user_stack:
                    error.user_stack = self.tx.user_stack()
                raise

    def give_up(self) -> None:
        """Let the next break stand before the first instruction."""
        self.step, self.at = 1, 0

    def break_step(self) -> int:
        """The step to stop before: the failed one, or the KW_NAMES or PRECALL that began its call."""
        step, at = self.step - 1, self.at
        while at > 0 and self.instructions[at - 1].opname in ("KW_NAMES", "PRECALL"):
            step, at = step - 1, at - 1
        return step


def _raises_again(instruction: Instruction) -> bool:
    """Whether an exception that the instruction raises keeps the traceback it has: RERAISE, and `raise` alone."""
    return instruction.opname == "RERAISE" or (instruction.opname == "RAISE_VARARGS" and not instruction.arg)


def _describe_exception(raised: Raised) -> str:
    cls = raised.value.python_type().__name__
    args = getattr(raised.value, "new_args", [])
    texts = [repr(arg.constant()) for arg in args if arg.is_constant()]
    return f"{cls}({', '.join(texts)})"


def trace_frame(
    frame: treadle_frame.FrameInfo,
    model: CodeModel,
    options: TracerOptions,
    dynamic: Mapping[Source, Mapping[int, int]] | None = None,
    stop_at: int | None = None,
    reason: Unsupported | None = None,
    caller_handles: bool = False,
) -> TraceResult:
    """Trace a frame as it is called.

    The result ends in a return, or in a break at the first instruction that cannot be traced. After an unsupported instruction
    the frame is traced again and stopped in front of it, so that nothing that the instruction began is left behind.
    With `stop_at` the trace breaks when it first reaches that instruction, for `reason`.
    caller_handles: a caller of the frame is handling an exception.
    """
    break_at: int | None = None
    for _ in range(3):
        tx = Tracer(inline_call, dynamic, options, caller_handles)
        root = _root_frame(tx, frame, model, break_at, stop_at)
        try:
            with room_to_recurse():
                return _run_root(tx, root, reason)
        except Unsupported as error:
            tx.abandon()
            reason, break_at = error, root.break_step()
        except BaseException:
            tx.abandon()
            raise
        finally:
            tx.frames.clear()  # frames refer to the trace: without the cycle, what a trace has seen dies with it
    raise InternalError("trace", f"a second trace of {model.qualname} took another path than the first")


def _root_frame(
    tx: Tracer, frame: treadle_frame.FrameInfo, model: CodeModel, break_at: int | None, stop_at: int | None
) -> RootFrame:
    if model.flags & (_CO_GENERATOR | _CO_ASYNC):
        raise Unsupported("generator", f"{model.qualname} is a generator or coroutine")
    root = RootFrame(tx, program_of(frame.code), frame.code, frame.globals, break_at=break_at, stop_at=stop_at)
    tx.root_globals = frame.globals
    root.locals = {name: LazyValue(value, LocalSource(name)) for name, value in frame.locals.items()}
    root.arguments = dict(root.locals)
    made_here = _cells_made_at_entry(model)
    for name in model.cellvars:  # a continuation gets the cells of its frame as arguments
        if name in frame.locals and name not in made_here:
            source = LocalSource(name)
            root.cells[name] = wrap_cell(tx, frame.locals[name], source, CellContentsSource(source))
            del root.locals[name]
    for name, cell in zip(model.freevars, frame.closure or (), strict=True):
        root.cells[name] = wrap_cell(tx, cell, ClosureCellSource(name), ClosureSource(name))
    return root


def _cells_made_at_entry(model: CodeModel) -> set[str]:
    """Cell variables whose cells the prologue makes. A continuation jumps over the prologue of its original function."""
    made: set[str] = set()
    at = 0
    while (instruction := model.instructions[at]).opname in ("MAKE_CELL", "COPY_FREE_VARS", "NOP", "JUMP_FORWARD"):
        if instruction.opname == "MAKE_CELL":
            made.add(instruction.argval)
        at = instruction.argval if instruction.opname == "JUMP_FORWARD" else at + 1
    return made


def _run_root(tx: Tracer, root: RootFrame, reason: Unsupported | None) -> TraceResult:
    tx.frames.append(root)
    root.run()
    root.check_restored(tx.mutations.nothing)
    try:
        tx.close_writes()
    except Unsupported:
        root.give_up()
        raise
    changes = tx.state_changes()
    tx.close_state()
    result = TraceResult("return", tx.graph, tx.guards, tx.mutations, state_changes=changes)
    result.protected = tx.was_protected
    result.env = tx.symbols.env
    result.generators, result.index = tuple(tx.generators), root.at
    result.arguments, result.locals = root.arguments, root.locals
    if not root.broken:
        result.value = root.result
        return result
    result.kind = "break"
    result.stack = root.stack
    result.cells = {name: root.cells[name] for name in root.program.model.cellvars if name in root.cells}
    result.handled, result.raised = tx.exception, tuple(root.raised)
    result.reason = reason
    return result
