"""Generators made in the trace: a suspended inlined frame."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Protocol

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import NONE, Constant, Method
from treadle_tracer.values.iteration import IteratorValue
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.value import Raised, Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


class Suspended(Protocol):
    """The frame of a generator: see `trace.frame`."""

    stack: list[Value]
    yielded: Value | None
    result: Value | None

    @property
    def name(self) -> str:
        """The name of the function."""
        ...

    def resume(self, thrown: Value | None) -> None:
        """Evaluate up to the next yield or the end; `thrown` is raised where the frame stands."""
        ...


class GeneratorValue(IteratorValue):
    """`frame` is evaluated piece by piece; `finished` after its return or an exception."""

    __slots__ = ("finished", "frame", "running", "started")

    def __init__(self, frame: Suspended):
        self.source = None
        self.frame = frame
        self.started = False
        self.finished = False
        self.running = False

    def python_type(self) -> type:
        return types.GeneratorType

    def describe(self) -> str:
        return f"generator {self.frame.name}"

    def next(self, tx: TraceContext) -> Value | None:
        return self.send(tx, NONE)[0]

    def send(self, tx: TraceContext, value: Value) -> tuple[Value | None, Value]:
        """(yielded item or None at the end, value of the return statement)."""
        if self.finished:
            return None, NONE
        if self.running:
            tx.raise_exception(ValueError, "generator already executing")
        if self.started:
            self.frame.stack.append(value)
        self.started = True
        return self._step(tx, None)

    def throw(self, tx: TraceContext, exception: Value) -> tuple[Value | None, Value]:
        """`generator.throw(exception)`."""
        if self.finished or not self.started:
            self.finished = True
            raise Raised(exception)
        return self._step(tx, exception)

    def _step(self, tx: TraceContext, thrown: Value | None) -> tuple[Value | None, Value]:
        handled = tx.exception
        self.running = True
        try:
            self.frame.resume(thrown)
        except Raised as raised:
            self.finished = True
            if issubclass(raised.value.python_type(), StopIteration):
                tx.raise_exception(RuntimeError, "generator raised StopIteration")
            raise
        finally:
            self.running = False
            tx.exception = handled
        if self.frame.yielded is not None:
            return self.frame.yielded, NONE
        self.finished = True
        return None, self.frame.result or NONE

    def close(self, tx: TraceContext) -> None:
        if self.finished:
            return
        if not self.started:
            self.finished = True
            return
        try:
            item, _ = self.throw(tx, ObjectValue(GeneratorExit))
        except Raised as raised:
            if not issubclass(raised.value.python_type(), (GeneratorExit, StopIteration)):
                raise
            return
        if item is not None:
            tx.raise_exception(RuntimeError, "generator ignored GeneratorExit")

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
            self.close(tx)
            return NONE
        if name == "__next__":
            return self._value_or_stop(tx, self.send(tx, NONE))
        return super().builtin_method(tx, name, args, kwargs)

    def _thrown(self, tx: TraceContext, args: list[Value]) -> Value:
        first = args[0]
        if len(args) > 1 and not (args[1].is_constant() and args[1].constant() is None):
            first = args[1]
        return first.call(tx, [], {}) if issubclass(first.python_type(), type) else first

    def _value_or_stop(self, tx: TraceContext, step: tuple[Value | None, Value]) -> Value:
        item, result = step
        if item is not None:
            return item
        has_result = not (isinstance(result, Constant) and result.obj is None)
        return tx.raise_exception_value(StopIteration, [result] if has_result else [])

    def reconstruct(self, cg: Any) -> None:
        raise Unsupported("reconstruct", self.describe())
