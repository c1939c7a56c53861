"""Generators made in the trace: a suspended inlined frame.

One that is alive at the end of the trace, or at a graph break, becomes a real generator that is suspended at the same place
(`bytecode.suspended_generator`). One that the program drops inside a `try` or `with` would be closed there, which the trace does not see:
such a frame is left to Python (`why_not_dropped`).
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from treadle_tracer.bytecode import SlotKind, live_locals, stack_kinds, suspended_generator
from treadle_tracer.bytecode.opcodes import MINOR
from treadle_tracer.class_facts import name_in_messages
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import NONE, NULL, Constant, Method, is_none
from treadle_tracer.values.exceptions import interpreter_exception, raise_for_stop_iteration
from treadle_tracer.values.iteration import IteratorValue
from treadle_tracer.values.value import Raised, Value, call_special

if TYPE_CHECKING:
    from treadle_tracer.bytecode import CodeModel
    from treadle_tracer.values.cells import CellValue
    from treadle_tracer.values.functions import FunctionValue
    from treadle_tracer.values.value import TraceContext


class Suspended(Protocol):
    """The frame of a generator: see `trace.frame`."""

    stack: list[Value]
    locals: dict[str, Value]
    cells: dict[str, CellValue]
    yielded: Value | None
    result: Value | None
    at: int

    @property
    def model(self) -> CodeModel:
        """The code."""
        ...

    def closes_with_effects(self) -> bool:
        """Whether a handler of the program covers the place where the frame stands."""
        ...

    @property
    def name(self) -> str:
        """The name of the function."""
        ...

    def delegate(self) -> Value | None:
        """The iterator of the `yield from` or `await` in which the frame stands."""
        ...

    def end_delegation(self, result: Value) -> None:
        """Let the frame go on behind its `yield from` or `await`, which has this value."""
        ...

    def resume(self, thrown: Value | None) -> None:
        """Evaluate up to the next yield or the end; `thrown` is raised where the frame stands."""
        ...


class GeneratorValue(IteratorValue):
    """`frame` is evaluated piece by piece; `finished` after its return or an exception.

    function   the generator function
    made_at    the instruction of the root frame that made the generator
    made_step  the step of the trace that did
    """

    __slots__ = ("finished", "frame", "function", "made_at", "made_step", "running", "started")
    kind = "generator"

    def __init__(self, frame: Suspended, function: FunctionValue, made_at: int, made_step: int):
        self.source = None
        self.frame = frame
        self.function = function
        self.made_at = made_at
        self.made_step = made_step
        self.started = False
        self.finished = False
        self.running = False

    def python_type(self) -> type:
        return types.GeneratorType

    def describe(self) -> str:
        return f"{self.kind} {self.frame.name}"

    def is_temporary(self, tx: TraceContext) -> bool:
        """Whether only the present call has the generator: what made it was the instruction before, as in `any(f(x) for x in xs)`."""
        return not self.started and tx.frames[-1].break_step() == self.made_step + 1

    def next(self, tx: TraceContext) -> Value | None:
        return self.send(tx, NONE)[0]

    def send(self, tx: TraceContext, value: Value) -> tuple[Value | None, Value]:
        """(yielded item or None at the end, value of the return statement)."""
        if self.finished:
            return None, NONE
        self._check_suspended(tx)
        if self.started:
            self.frame.stack.append(value)
        elif not is_none(value):
            tx.raise_exception(TypeError, f"can't send non-None value to a just-started {self.kind}")
        self.started = True
        return self._step(tx, None)

    def throw(self, tx: TraceContext, exception: Value) -> tuple[Value | None, Value]:
        """`generator.throw(exception)`: into the iterator of a `yield from`, if the generator stands in one."""
        self._check_suspended(tx)
        if self.finished or not self.started:
            self.finished = True
            raise Raised(exception)
        delegate = self.frame.delegate()
        if delegate is None:
            return self._step(tx, exception)
        self.running = True
        try:
            item, result = throw_into(tx, delegate, exception)
        except Raised as raised:
            return self._step(tx, raised.value)
        finally:
            self.running = False
        if item is not None:
            return item, NONE
        self.frame.end_delegation(result)
        return self._step(tx, None)

    def _check_suspended(self, tx: TraceContext) -> None:
        if self.running:
            tx.raise_exception(ValueError, f"{self.kind} already executing")

    def _step(self, tx: TraceContext, thrown: Value | None) -> tuple[Value | None, Value]:
        handled = tx.exception
        self.running = True
        try:
            self.frame.resume(thrown)
        except Raised as raised:
            self.finished = True
            if issubclass(raised.value.python_type(), StopIteration):
                raise_for_stop_iteration(tx, self.kind, raised.value)
            raise
        finally:
            self.running = False
            tx.exception = handled
        if self.frame.yielded is not None:
            return self.frame.yielded, NONE
        self.finished = True
        return None, self.frame.result or NONE

    def close(self, tx: TraceContext) -> Value:
        """`generator.close()`: from Python 3.13 on it gives what the generator returns."""
        self._check_suspended(tx)
        if self.finished or not self.started:
            self.finished = True
            return NONE
        try:
            item, result = self.throw(tx, interpreter_exception(GeneratorExit, []))
        except Raised as raised:
            if not issubclass(raised.value.python_type(), (GeneratorExit, StopIteration)):
                raise
            return NONE
        if item is not None:
            tx.raise_exception(RuntimeError, f"{self.kind} ignored GeneratorExit")
        return result if MINOR >= 13 else NONE

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        if name in ("send", "throw", "close", "__next__", "__iter__"):
            return Method(self, name, None)
        if name in ("gi_running", "gi_frame", "gi_code"):
            raise Unsupported("generator", f".{name}")
        return super().get_attr(tx, name)

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "send":
            return self._value_or_stop(tx, self.send(tx, args[0]))
        if name == "throw":
            return self._value_or_stop(tx, self.throw(tx, self._thrown(tx, args)))
        if name == "close":
            return self.close(tx)
        if name == "__next__":
            return self._value_or_stop(tx, self.send(tx, NONE))
        return super().builtin_method(tx, name, args, kwargs)

    def _thrown(self, tx: TraceContext, args: list[Value]) -> Value:
        first = args[0]
        if len(args) > 1 and not (args[1].is_constant() and args[1].constant() is None):
            first = args[1]
        exception = first.call(tx, [], {}) if issubclass(first.python_type(), type) else first
        if not issubclass(exception.python_type(), BaseException):
            name = name_in_messages(args[0].python_type())
            what = "exceptions must be classes or instances deriving from BaseException"
            tx.raise_exception(TypeError, f"{what}, not {name}")
        return exception

    def _value_or_stop(self, tx: TraceContext, step: tuple[Value | None, Value]) -> Value:
        item, result = step
        if item is not None:
            return item
        return tx.raise_exception_value(StopIteration, [] if is_none(result) else [result])

    def why_not_dropped(self) -> Unsupported | None:
        """Why the program cannot drop the generator where it stands: closing it runs code of the program."""
        if self.finished or not self.started or not self.frame.closes_with_effects():
            return None
        return Unsupported("generator", f"{self.describe()}, dropped inside its try or with")

    def reconstruct(self, cg: Any) -> None:
        if self.running:
            raise Unsupported("reconstruct", f"{self.describe()}, which is running", (), self.made_at)
        if self.finished:
            cg.call_const(_finished_generator, self.function)
            return
        names, stack, code, start = _suspension(self) if self.started else _beginning(self)
        frame = self.frame
        variables = [frame.cells[name] if name in frame.cells else frame.locals[name] for name in names]
        cg.call_const(start, Constant(code), self.function, *variables, *stack)


_Start = Callable[..., Any]


def _suspension(generator: GeneratorValue) -> tuple[tuple[str, ...], list[Value], types.CodeType, _Start]:
    """The variables and stack slots to pass, the code, and how to start it."""
    frame, model = generator.frame, generator.frame.model
    if any(kind is SlotKind.HANDLED for kind in stack_kinds(model)[frame.at] or ()):
        raise Unsupported(
            "reconstruct", f"{generator.describe()}, which is handling an exception", (), generator.made_at
        )
    known = [name for name in live_locals(model, frame.at) if name in frame.locals or name in frame.cells]
    kinds = [SlotKind.NULL if slot is NULL else SlotKind.VALUE for slot in frame.stack]
    made = suspended_generator(model, frame.at, known, [*kinds, SlotKind.VALUE])
    return made.variables, [slot for slot in frame.stack if slot is not NULL], made.code, _suspended_generator


def _beginning(generator: GeneratorValue) -> tuple[tuple[str, ...], list[Value], types.CodeType, _Start]:
    code = generator.function.code
    names = code.co_varnames[: len(generator.frame.model.arguments)]
    flags = code.co_flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    plain = code.replace(co_argcount=len(names), co_posonlyargcount=0, co_kwonlyargcount=0, co_flags=flags)
    return names, [], plain, _new_generator


# ---- iterators of `yield from` and `await`


def send_into(tx: TraceContext, receiver: Value, sent: Value) -> tuple[Value | None, Value]:
    """One step of the iterator of a `yield from`: (item or None at the end, value of the `yield from`)."""
    if isinstance(receiver, GeneratorValue):
        return receiver.send(tx, sent)
    if isinstance(receiver, IteratorValue) and is_none(sent):
        return receiver.next(tx), NONE
    try:
        if is_none(sent):
            return call_special(tx, receiver, "__next__", []), NONE
        return receiver.get_attr(tx, "send").call(tx, [sent], {}), NONE
    except Raised as raised:
        return None, _value_of_stop(tx, raised)


def throw_into(tx: TraceContext, receiver: Value, exception: Value) -> tuple[Value | None, Value]:
    """The same with an exception thrown. A GeneratorExit closes the iterator and is raised behind it."""
    if issubclass(exception.python_type(), GeneratorExit):
        close = _attribute(tx, receiver, "close")
        if close is not None:
            close.call(tx, [], {})
        raise Raised(exception)
    if isinstance(receiver, GeneratorValue):
        return receiver.throw(tx, exception)
    throw = _attribute(tx, receiver, "throw")
    if throw is None:
        raise Raised(exception)
    try:
        return throw.call(tx, [exception], {}), NONE
    except Raised as raised:
        return None, _value_of_stop(tx, raised)


def _attribute(tx: TraceContext, owner: Value, name: str) -> Value | None:
    try:
        return owner.get_attr(tx, name)
    except Raised as raised:
        if not issubclass(raised.value.python_type(), AttributeError):
            raise
        return None


def _value_of_stop(tx: TraceContext, raised: Raised) -> Value:
    if not issubclass(raised.value.python_type(), StopIteration):
        raise raised
    return raised.value.get_attr(tx, "value")


# ---- run-time helpers of replacement code


def _new_generator(code: types.CodeType, function: types.FunctionType, *args: Any) -> Any:
    """A generator of `code` with the names, globals and cells of `function`."""
    made = types.FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)
    made.__qualname__ = function.__qualname__
    return made(*args)


def _suspended_generator(code: types.CodeType, function: types.FunctionType, *args: Any) -> Any:
    generator = _new_generator(code, function, *args, None)
    next(generator)
    return generator


def _finished_generator(function: types.FunctionType) -> Any:
    generator = _new_generator(_EMPTY, types.FunctionType(_EMPTY, function.__globals__, function.__name__))
    next(generator, None)
    return generator


def _empty() -> Iterator[None]:
    return
    yield


_EMPTY = _empty.__code__
