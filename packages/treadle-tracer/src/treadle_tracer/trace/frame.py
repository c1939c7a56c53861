"""Frames: the loop that evaluates instructions, inlined frames, and the root frame with its graph breaks."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from treadle_shapes import UnbackedError
from treadle_tracer.bytecode import CodeModel, ExceptionEntry, joins, live_names, read
from treadle_tracer.bytecode.opcodes import NULL_AFTER_CALLABLE, compare_converts_to_bool
from treadle_tracer.code_map import CodeMap
from treadle_tracer.errors import InternalError, Unsupported
from treadle_tracer.source import CellContentsSource, ClosureCellSource, ClosureSource, LocalSource, Source
from treadle_tracer.trace.bind import bind_arguments
from treadle_tracer.trace.result import TraceResult
from treadle_tracer.trace.table import HANDLERS
from treadle_tracer.trace.tracer import Tracer, room_to_recurse
from treadle_tracer.values.base import NULL, Constant, LazyValue, NotConstant, Raised, Value
from treadle_tracer.values.functions import BoundMethod, CellValue, FunctionValue
from treadle_tracer.values.generators import GeneratorValue
from treadle_tracer.values.unbacked import refusal

if TYPE_CHECKING:
    import treadle_frame
    from treadle_tracer.options import TracerOptions

_CO_GENERATOR = 0x20
_CO_ASYNC = 0x80 | 0x200


class Program:
    """A code model with its handlers looked up: what the loop runs."""

    __slots__ = ("_joins", "_live", "handled_at", "model", "steps")

    def __init__(self, model: CodeModel):
        self.model = model
        self.steps = [(HANDLERS[i.opname], i) for i in model.instructions]
        self.handled_at: list[ExceptionEntry | None] = [None] * len(self.steps)
        self._live: list[frozenset[str]] | None = None
        self._joins: list[int | None] | None = None
        for entry in model.exceptions:
            for index in range(entry.start, entry.end + 1):
                self.handled_at[index] = entry

    def live_at(self, index: int) -> frozenset[str]:
        """Variables that instruction `index` or a later one may read."""
        if self._live is None:
            self._live = live_names(self.model)
        return self._live[index]

    def join_of(self, index: int) -> int | None:
        """Where all ways from instruction `index` come together again."""
        if self._joins is None:
            self._joins = joins(self.model)
        return self._joins[index]

    def outer(self, entry: ExceptionEntry) -> ExceptionEntry | None:
        """The entry that covers the handler of `entry`, other than the handler's own cleanup."""
        found = self.handled_at[entry.target]
        return None if found is None or found.target >= entry.target and found.lasti else found


_programs: CodeMap[Program] = CodeMap()


def program_of(code: types.CodeType) -> Program:
    """The program of a code object, read once."""
    found = _programs.get(code)
    if found is None:
        found = _programs[code] = Program(read(code))
    return found


class Frame:
    """One function being evaluated."""

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
        self.pc = 0
        self.at = 0
        self.keyword_names: tuple[str, ...] = ()
        self.stop_at: int | None = None
        self.result: Value | None = None
        self.yielded: Value | None = None
        self.name = program.model.name

    # ---- what handlers use

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

    def named_locals(self) -> dict[str, Value]:
        """What `locals()` holds: bound variables in slot order, cells by their contents."""
        bound: dict[str, Value] = {}
        for name in self.program.model.localsplus:
            value = self.cells[name].load(self.tx) if name in self.cells else self.locals.get(name)
            if value is not None:
                bound[name] = value.force(self.tx) if isinstance(value, LazyValue) else value
        return bound

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

    converts_to_bool = staticmethod(compare_converts_to_bool)

    def position(self) -> tuple[str, int, str]:
        """(file, line, function) of the instruction being evaluated."""
        model = self.program.model
        return model.filename, self.instructions[self.at].line or model.firstlineno, model.name

    # ---- the loop

    def run(self) -> None:
        """Evaluate up to the next return or yield."""
        if self.tx.speculation is not None:
            self.tx.speculation.run(self)
            return
        steps = self.program.steps
        while True:
            at = self.at = self.pc
            self.pc = at + 1
            handler, instruction = steps[at]
            try:
                if handler(self, instruction):
                    return
            except Raised as raised:
                self.handle(raised, at)
            except Unsupported as error:
                if not error.user_stack:
                    error.user_stack = self.tx.user_stack()
                raise
            except UnbackedError as error:
                raise refusal(self.tx, error) from None
            except NotConstant as error:
                raise Unsupported(
                    "not-constant", error.args[0].describe() if error.args else "", self.tx.user_stack()
                ) from None

    def handle(self, raised: Raised, at: int) -> None:
        """Go on in the exception handler that covers instruction `at`, or let the exception leave the frame."""
        entry = self.program.handled_at[at]
        if entry is None:
            raise raised
        self.keyword_names = ()
        del self.stack[entry.depth :]
        if entry.lasti:
            self.stack.append(Constant(at))
        self.stack.append(raised.value)
        self.pc = entry.target

    def call(self) -> Value:
        """Evaluate the whole frame as a call."""
        tx = self.tx
        tx.frames.append(self)
        handled = tx.exception
        protection = self._enter_protection()
        try:
            self.run()
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
        """Whether an exception at the present instruction could be seen by the traced program before it leaves the frame.

        The `with` statements of PyTorch's own context managers only put state back. Since 3.12 every generator has a handler
        that turns StopIteration into RuntimeError (PEP 479), which is INTRINSIC_STOPITERATION_ERROR and RERAISE.
        """
        entry = self.program.handled_at[self.at]
        while entry is not None:
            if self.instructions[entry.target].opname == "CALL_INTRINSIC_1":
                entry = self.program.outer(entry)
                continue
            following = self.instructions[entry.target + 1]
            if following.opname != "WITH_EXCEPT_START" or len(self.stack) < entry.depth:
                return True
            leave = self.stack[entry.depth - 1]
            if (
                not isinstance(leave, BoundMethod)
                or leave.instance.python_type().__module__.partition(".")[0] != "torch"
            ):
                return True
            entry = self.program.outer(entry)
        return False

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
        return GeneratorValue(frame)
    return frame.call()


# ---- the root frame


class RootFrame(Frame):
    """The frame that is compiled. Stops before step number `break_at`, counted in executed instructions, and at instruction `stop_at`."""

    def __init__(self, *args: Any, break_at: int | None = None, stop_at: int | None = None):
        super().__init__(*args)
        self.break_at = break_at
        self.stop_at = stop_at
        self.step = 0
        self.broken = False

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
                self.handle(raised, at)
            except UnbackedError as error:
                raise refusal(self.tx, error) from None
            except NotConstant as error:
                raise Unsupported("not-constant", error.args[0].describe(), self.tx.user_stack()) from None
            except Unsupported as error:
                if not error.user_stack:
                    error.user_stack = self.tx.user_stack()
                raise

    def break_step(self) -> int:
        """The step to stop before: the one that failed, or the KW_NAMES or PRECALL that began its call."""
        step, at = self.step - 1, self.at
        while at > 0 and self.instructions[at - 1].opname in ("KW_NAMES", "PRECALL"):
            step, at = step - 1, at - 1
        return step


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
) -> TraceResult:
    """Trace a frame as it is called.

    The result ends in a return, or in a break at the first instruction that cannot be traced. After an unsupported instruction
    the frame is traced once more and stopped in front of it, so that nothing of what the instruction began is left behind.
    `stop_at` breaks the first time that instruction is due, for `reason`.
    """
    break_at: int | None = None
    for _ in range(3):
        tx = Tracer(inline_call, dynamic, options)
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
    raise InternalError("trace", f"a second trace of {model.qualname} took another way than the first")


def _root_frame(
    tx: Tracer, frame: treadle_frame.FrameInfo, model: CodeModel, break_at: int | None, stop_at: int | None
) -> RootFrame:
    if model.flags & (_CO_GENERATOR | _CO_ASYNC):
        raise Unsupported("generator", f"{model.qualname} is a generator or coroutine")
    root = RootFrame(tx, program_of(frame.code), frame.code, frame.globals, break_at=break_at, stop_at=stop_at)
    tx.root_globals = frame.globals
    root.locals = {name: LazyValue(value, LocalSource(name)) for name, value in frame.locals.items()}
    made_here = _cells_made_at_entry(model)
    for name in model.cellvars:  # a continuation gets the cells of its frame as arguments
        if name in frame.locals and name not in made_here:
            source = LocalSource(name)
            root.cells[name] = tx.wrap_cell(frame.locals[name], source, CellContentsSource(source))
            del root.locals[name]
    for name, cell in zip(model.freevars, frame.closure or (), strict=True):
        root.cells[name] = tx.wrap_cell(cell, ClosureCellSource(name), ClosureSource(name))
    return root


def _cells_made_at_entry(model: CodeModel) -> set[str]:
    """Cell variables whose cells the prologue makes; a continuation jumps over that of the function it was cut from."""
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
    tx.forget_restored()
    changes = tx.state_changes()
    tx.close_state()
    result = TraceResult("return", tx.graph, tx.guards, tx.mutations, state_changes=changes)
    result.protected = tx.was_protected
    result.env = tx.symbols.env
    if not root.broken:
        result.value = root.result
        return result
    result.kind = "break"
    result.index = root.at
    result.stack = root.stack
    result.locals = root.locals
    result.cells = {name: root.cells[name] for name in root.program.model.cellvars if name in root.cells}
    result.reason = reason
    return result
