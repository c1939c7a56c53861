"""The root frame with its graph breaks, and calls evaluated in place."""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping, MutableMapping
from types import CodeType
from typing import TYPE_CHECKING, Any

from torch.utils.weak import WeakIdKeyDictionary

from treadle_shapes import UnbackedError
from treadle_tracer.bytecode import CodeModel, read
from treadle_tracer.class_facts import name_of
from treadle_tracer.errors import BreakReached, InternalError, Unsupported, without_frames
from treadle_tracer.output.continuations import is_continuation, original_of, starts_in_loop
from treadle_tracer.output.varying_items import VaryingItems
from treadle_tracer.room import room_to_recurse
from treadle_tracer.source import CellContentsSource, ClosureCellSource, ClosureSource, LocalSource, Source
from treadle_tracer.trace.bind import bind_arguments
from treadle_tracer.trace.frame import SUSPENDED, Frame, evaluates_frames, raises_again
from treadle_tracer.trace.patience import TakesTooLong, takes_long
from treadle_tracer.trace.program import Program
from treadle_tracer.trace.result import InnerFrame, TraceResult
from treadle_tracer.trace.table import HANDLERS
from treadle_tracer.trace.tracer import Tracer
from treadle_tracer.trace.watched_arguments import WatchedArguments
from treadle_tracer.values.base import LazyValue
from treadle_tracer.values.cells import CellValue, wrap_cell
from treadle_tracer.values.coroutines import CoroutineValue
from treadle_tracer.values.entered_contexts import LeftInside
from treadle_tracer.values.functions import FunctionValue
from treadle_tracer.values.generators import GeneratorValue
from treadle_tracer.values.tail_calls import tail_call
from treadle_tracer.values.unbacked import refusal
from treadle_tracer.values.value import NotConstant, Raised, Value

if TYPE_CHECKING:
    import treadle_frame
    from treadle_tracer.options import TracerOptions


_programs: MutableMapping[CodeType, Program] = WeakIdKeyDictionary()


def program_of(code: types.CodeType) -> Program:
    """The program of a code object, read once."""
    found = _programs.get(code)
    if found is None:
        found = _programs[code] = Program(read(code), HANDLERS)
    return found


def _readable_program(code: types.CodeType) -> Program:
    """The program of a code object whose frame starts. Raises Unsupported if one name means two cells.

    CPython 3.12 and 3.13 compile `[lambda: n for n in ...]` in a function whose free variable is `n` so that the cell of the comprehension
    overwrites the closure's. Only Python itself knows what the variable means from then on.
    """
    program = program_of(code)
    both = [name for name in program.model.cellvars if name in program.model.freevars]
    if both:
        raise Unsupported(
            "opcode", f"MAKE_CELL: {both[0]} is a free variable of {code.co_qualname} and a cell of its own"
        )
    return program


@tail_call
def inline_call(tx: Tracer, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Evaluate a call of a Python function in place; of a generator function: the generator; of an `async def`: the coroutine."""
    code = function.code
    if code.co_flags & inspect.CO_ASYNC_GENERATOR:
        raise Unsupported("async", function.describe())
    program = _readable_program(code)
    bound = bind_arguments(tx, function, args, kwargs)
    tx.inlined[id(code)] = code
    frame = Frame(tx, program, code, function.globals)
    frame.function = function
    frame.locals, frame.arguments = bound, tuple(bound.values())
    frame.cells = dict(zip(code.co_freevars, function.closure, strict=True))
    for name in frame.program.cells_passed:
        passed = bound.get(name)
        cell = passed.force(tx) if isinstance(passed, LazyValue) else passed
        if isinstance(cell, CellValue):
            frame.cells[name] = cell
            del bound[name]
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE):
        at = getattr(tx.frames[0], "at", -1) if tx.frames else -1
        make = CoroutineValue if code.co_flags & inspect.CO_COROUTINE else GeneratorValue
        made = make(frame, function, at, tx.step - 1)
        tx.generators.append(made)
        return made
    return frame.call()


def run_body(tx: Tracer, function: FunctionValue, namespace: Value) -> Value:
    """Evaluate the body of a class, or what `exec` and `eval` evaluate, in place. Its variables are items of `namespace`."""
    frame = Frame(tx, _readable_program(function.code), function.code, function.globals)
    frame.function = function
    frame.namespace = namespace
    frame.cells = dict(zip(function.code.co_freevars, function.closure, strict=True))
    return frame.call()


# ---- the root frame


class RootFrame(Frame):
    """The frame that is compiled. The trace stops before step `break_at`, in whichever frame, and at instruction `stop_at` of this one."""

    def __init__(self, *args: Any, stop_at: int | None = None):
        super().__init__(*args)
        self.stop_at = stop_at
        self.broken = False
        self.arguments: dict[str, Value] = {}
        self.raised: list[tuple[Value, int]] = []
        self.watched: WatchedArguments | None = None

    @evaluates_frames
    def run(self) -> None:
        tx, steps, patience = self.tx, self.program.steps, self.tx.patience
        while True:
            at = self.at = self.pc
            self.step = step = tx.step
            if step == tx.break_at or at == self.stop_at:
                tx.note_break()
                self.broken = True
                return
            tx.step = step + 1
            self.pc = at + 1
            handler, instruction = steps[at]
            try:
                if step >= patience.ends_at:
                    tx.check_patience(step)
                if handler(self, instruction):
                    return
                if self.watched is not None:
                    self.watched.check(self)
            except BreakReached:
                self.broken = True
                return
            except Raised as raised:
                if self.program.handled_at[at] is None:
                    error = Unsupported("raises", _describe_exception(raised))
                    # The guards say what has led to the exception, also in the functions that it has left.
                    error.steps = raised.steps
                    raise self.located(error) from raised
                again = raises_again(instruction)
                if not again:
                    self.raised.append((raised.value, at))
                tx.note_raised(raised.value, again)
                self.handle(raised, at)
                self.check_watched()
            except UnbackedError as error:
                raise self.located(refusal(tx, error)) from None
            except NotConstant as error:
                raise self.located(Unsupported("not-constant", error.value.describe())) from None
            except Unsupported as error:
                self.located(error)
                raise

    def check_watched(self) -> None:
        """Raises Unsupported, with its place, if the present instruction has dropped an argument whose death has an effect."""
        try:
            if self.watched is not None:
                self.watched.check(self)
        except Unsupported as error:
            self.located(error)
            raise

    def give_up(self) -> None:
        """Let the next break stand before the first instruction."""
        self.step, self.at = 0, 0


def _describe_exception(raised: Raised) -> str:
    cls = name_of(raised.value.python_type())
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
    break_at: int | None = None,
) -> TraceResult:
    """Trace a frame as it is called.

    The result ends in a return, or in a break at the first instruction that cannot be traced. After an unsupported instruction
    the frame is traced again and stopped in front of it, so that nothing that the instruction began is left behind.
    With `stop_at` the trace breaks when it first reaches that instruction, for `reason`; with `break_at`, before that step.
    caller_handles: a caller of the frame is handling an exception.
    """
    if takes_long(frame.code) and not options.fullgraph:
        raise TakesTooLong("long-trace", model.qualname)
    stays_out: dict[int, str] = {}
    for _ in range(5):
        tx = Tracer(inline_call, run_body, dynamic, options, caller_handles, stays_out)
        tx.break_at = break_at
        root = _root_frame(tx, frame, model, stop_at)
        if tx.symbols.dynamic.unsteady:
            tx.guards.varying = VaryingItems(tx.symbols.dynamic.unsteady, root)
        try:
            with room_to_recurse():
                return _run_root(tx, root, reason)
        except TakesTooLong:
            tx.abandon()
            tx.forget()
            raise
        except LeftInside as error:
            stays_out[error.step] = error.name if reason is None else f"{reason.code}, {reason.context}"
            tx.abandon()
            tx.forget()
        except Unsupported as error:
            reason, break_at = without_frames(error), (error.steps or (root.break_step(),))[-1]
            tx.abandon()
            tx.forget()
        except BaseException:
            tx.abandon()
            tx.forget()
            raise
        finally:
            tx.leave_frames()
    raise InternalError("trace", f"a second trace of {model.qualname} took another path than the first")


def _root_frame(tx: Tracer, frame: treadle_frame.FrameInfo, model: CodeModel, stop_at: int | None) -> RootFrame:
    if model.flags & SUSPENDED:
        raise Unsupported("generator", f"{model.qualname} is a generator or coroutine")
    root = RootFrame(tx, _readable_program(frame.code), frame.code, frame.globals, stop_at=stop_at)
    root.shows_itself = not is_continuation(frame.code)
    tx.unrolls_outside_iterators = not starts_in_loop(frame.code)
    if not root.shows_itself:
        root.frames_between = 1  # the replacement of the function has called it
    elif original_of(frame.code) is not frame.code:
        root.frames_between = None
    tx.root_globals = frame.globals
    arguments = {name: LazyValue(value, LocalSource(name)) for name, value in frame.locals.items()}
    root.locals, root.arguments = dict(arguments), dict(arguments)
    if not root.shows_itself:
        root.watched = WatchedArguments(arguments) or None
    for name in root.program.cells_passed:
        # An inlined comprehension may have a variable of its own in the slot, and the cell on the stack.
        if isinstance(frame.locals.get(name), types.CellType):
            source = LocalSource(name)
            root.cells[name] = wrap_cell(tx, frame.locals[name], source, CellContentsSource(source))
            del root.locals[name]
    for name, cell in zip(model.freevars, frame.closure or (), strict=True):
        root.cells[name] = wrap_cell(tx, cell, ClosureCellSource(name), ClosureSource(name))
    return root


def _run_root(tx: Tracer, root: RootFrame, reason: Unsupported | None) -> TraceResult:
    tx.frames.append(root)
    root.run()
    tx.graph.separation = None
    tx.contexts.require_none()
    root.check_restored(tx.mutations.nothing)
    try:
        tx.close_writes()
    except Unsupported:
        root.give_up()
        raise
    changes = tx.state_changes()
    tx.close_state()
    result = TraceResult("return", tx.graph, tx.guards, tx.mutations, state_changes=changes, forget=tx.forget)
    result.protected = tx.was_protected
    result.told_of_compiling = tx.was_told_of_compiling
    result.env = tx.symbols.env
    result.inlined = tuple(tx.inlined.values())
    result.generators, result.index = tuple(tx.generators), root.at
    result.arguments, result.locals = root.arguments, root.locals
    if not root.broken:
        result.value = root.result
        return result
    result.kind = "break"
    result.stack = root.stack
    result.cells = {name: root.cells[name] for name in root.program.model.cellvars if name in root.cells}
    result.handled, result.raised = tx.handled_at_break, tuple(root.raised)
    result.caught = tuple(tx.caught)
    result.inner = tuple(_inner_frame(frame) for frame in tx.broken_frames[1:])
    result.steps = tuple(frame.break_step() for frame in tx.broken_frames)
    result.reason = reason
    return result


def _inner_frame(frame: Frame) -> InnerFrame:
    assert frame.function is not None
    cells = {name: frame.cells[name] for name in frame.model.cellvars if name in frame.cells}
    return InnerFrame(frame.function, frame.model, frame.at, frame.stack, frame.locals, cells)
