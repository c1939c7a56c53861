"""Handlers of the opcodes of `await`, `async with` and `async for`. Asynchronous generators are not traced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle_tracer.class_facts import name_in_messages
from treadle_tracer.tables import by_name
from treadle_tracer.trace.op_handler import OpHandler, unsupported
from treadle_tracer.values.coroutines import awaitable
from treadle_tracer.values.value import Raised, special_method

if TYPE_CHECKING:
    from treadle_tracer.bytecode import Instruction
    from treadle_tracer.trace.frame import Frame
    from treadle_tracer.values.value import Value

# By the argument of GET_AWAITABLE: what has given the object.
_REFUSALS = {
    1: "'async with' received an object from __aenter__ that does not implement __await__: {}",
    2: "'async with' received an object from __aexit__ that does not implement __await__: {}",
}


def _get_awaitable(frame: Frame, i: Instruction) -> None:
    value = frame.stack.pop()
    refusal = _REFUSALS.get(i.arg or 0, "object {} can't be used in 'await' expression")
    frame.stack.append(awaitable(frame.tx, value, refusal.format(_name(value))))


def _before_async_with(frame: Frame, i: Instruction) -> None:
    tx, manager = frame.tx, frame.stack.pop()
    enter, leave = special_method(tx, manager, "__aenter__"), special_method(tx, manager, "__aexit__")
    if enter is None or leave is None:
        missed = "" if enter is None else " (missed __aexit__ method)"
        what = "object does not support the asynchronous context manager protocol"
        tx.raise_exception(TypeError, f"{_name(manager)!r} {what}{missed}")
    frame.stack.append(leave)
    frame.stack.append(enter.call(tx, [], {}))


def _get_aiter(frame: Frame, i: Instruction) -> None:
    tx, iterable = frame.tx, frame.stack.pop()
    method = special_method(tx, iterable, "__aiter__")
    if method is None:
        tx.raise_exception(TypeError, f"'async for' requires an object with __aiter__ method, got {_name(iterable)}")
    iterator = method.call(tx, [], {})
    if special_method(tx, iterator, "__anext__") is None:
        what = "'async for' received an object from __aiter__ that does not implement __anext__"
        tx.raise_exception(TypeError, f"{what}: {_name(iterator)}")
    frame.stack.append(iterator)


def _get_anext(frame: Frame, i: Instruction) -> None:
    tx = frame.tx
    method = special_method(tx, frame.stack[-1], "__anext__")
    assert method is not None  # `_get_aiter` has asked
    item = method.call(tx, [], {})
    refusal = f"'async for' received an invalid object from __anext__: {_name(item)}"
    frame.stack.append(awaitable(tx, item, refusal))


def _end_async_for(frame: Frame, i: Instruction) -> None:
    exception = frame.stack.pop()
    if not issubclass(exception.python_type(), StopAsyncIteration):
        raise Raised(exception)
    frame.stack.pop()


def _name(value: Value) -> str:
    return name_in_messages(value.python_type())


HANDLERS: dict[str, OpHandler] = by_name(
    ("GET_AWAITABLE", _get_awaitable),
    ("BEFORE_ASYNC_WITH", _before_async_with),
    ("GET_AITER", _get_aiter),
    ("GET_ANEXT", _get_anext),
    ("END_ASYNC_FOR", _end_async_for),
    ("ASYNC_GEN_WRAP", unsupported("an asynchronous generator")),
)
