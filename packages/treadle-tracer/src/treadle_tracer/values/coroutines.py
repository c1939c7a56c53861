"""Coroutines made in the trace: generators that `await` and `send` drive.

async def double(y): return 2 * y
def f(x):
    try: double(x).send(None)
    except StopIteration as stop: return stop.value
"""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING

from treadle_tracer.class_facts import name_in_messages
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import NONE, Method
from treadle_tracer.values.class_lookup import MISSING, lookup
from treadle_tracer.values.generators import GeneratorValue
from treadle_tracer.values.iteration import IteratorValue
from treadle_tracer.values.value import Value, special_method

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


class CoroutineValue(GeneratorValue):
    """A call of an `async def` function."""

    __slots__ = ()
    kind = "coroutine"

    def python_type(self) -> type:
        return types.CoroutineType

    def iterate(self, tx: TraceContext) -> Value:
        tx.raise_exception(TypeError, "'coroutine' object is not iterable")

    def unpack(self, tx: TraceContext) -> list[Value]:
        return self.iterate(tx).unpack(tx)

    def contains(self, tx: TraceContext, item: Value) -> bool:
        tx.raise_exception(TypeError, "argument of type 'coroutine' is not iterable")

    def next(self, tx: TraceContext) -> Value | None:
        tx.raise_exception(TypeError, "'coroutine' object is not an iterator")

    def send(self, tx: TraceContext, value: Value) -> tuple[Value | None, Value]:
        self._check_new(tx)
        return super().send(tx, value)

    def throw(self, tx: TraceContext, exception: Value) -> tuple[Value | None, Value]:
        self._check_new(tx)
        return super().throw(tx, exception)

    def _check_new(self, tx: TraceContext) -> None:
        if self.finished:
            tx.raise_exception(RuntimeError, "cannot reuse already awaited coroutine")

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        if name in ("send", "throw", "close", "__await__"):
            return Method(self, name, None)
        return Value.get_attr(self, tx, name)

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__await__":
            return AwaitedIterator(self)
        if name == "__next__":  # of `next(coroutine)`
            self.next(tx)
        return super().builtin_method(tx, name, args, kwargs)

    def why_not_dropped(self) -> Unsupported | None:
        if not self.started and not self.finished:
            return Unsupported("async", f"{self.describe()}, never awaited: Python warns when it is freed")
        return super().why_not_dropped()

    def reconstruct(self, cg: object) -> None:
        if self.started or self.finished:
            raise Unsupported("reconstruct", f"{self.describe()} in the middle of its run", (), self.made_at)
        super().reconstruct(cg)


class AwaitedIterator(IteratorValue):
    """`coroutine.__await__()`"""

    __slots__ = ("coroutine",)

    def __init__(self, coroutine: CoroutineValue):
        self.source = None
        self.coroutine = coroutine

    def python_type(self) -> type:
        return _COROUTINE_WRAPPER

    def next(self, tx: TraceContext) -> Value | None:
        return self.coroutine.send(tx, NONE)[0]

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        if name in ("send", "throw", "close"):
            return Method(self.coroutine, name, None)
        return super().get_attr(tx, name)

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__next__":
            return self.coroutine.builtin_method(tx, "send", [NONE], {})
        return super().builtin_method(tx, name, args, kwargs)


async def _coroutine() -> None: ...


def _wrapper_type() -> type:
    made = _coroutine()
    wrapper = made.__await__()
    made.close()
    return type(wrapper)


_COROUTINE_WRAPPER = _wrapper_type()


def awaitable(tx: TraceContext, value: Value, refusal: str) -> Value:
    """The iterator that `await value` goes through. refusal: the message about an object that cannot be awaited."""
    if isinstance(value, CoroutineValue):
        if value.started and not value.finished and value.frame.delegate() is not None:
            tx.raise_exception(RuntimeError, "coroutine is being awaited already")
        return value
    if isinstance(value, GeneratorValue) and value.function.code.co_flags & inspect.CO_ITERABLE_COROUTINE:
        return value
    method = special_method(tx, value, "__await__")
    if method is None:
        tx.raise_exception(TypeError, refusal)
    iterator = method.call(tx, [], {})
    if isinstance(iterator, AwaitedIterator):
        return iterator.coroutine
    if isinstance(iterator, CoroutineValue):
        tx.raise_exception(TypeError, "__await__() returned a coroutine")
    if lookup(tx, iterator.python_type(), "__next__") is MISSING:
        name = name_in_messages(iterator.python_type())
        tx.raise_exception(TypeError, f"__await__() returned non-iterator of type '{name}'")
    return iterator


__all__ = ["AwaitedIterator", "CoroutineValue", "awaitable"]
