"""Generators that the program drops in the middle of their run.

    for y in opened(x):         # a generator with a `finally`
        break                   # Python closes it here, and runs the `finally`
    log.append("after")

The trace does not count references, so it cannot tell when a generator is closed. Where closing one runs code of the program, a frame that
drops it is left to Python.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..bytecode import read
from ..errors import Unsupported
from ..values.base import LazyValue, settled
from ..values.finalizers import HOLDING_ITERATORS, has_finalizer
from .replacement import Usage

if TYPE_CHECKING:
    from ..trace.result import TraceResult


def check_dropped_generators(result: TraceResult, usage: Usage) -> None:
    """Raises Unsupported if the traced program drops a generator, made in the trace or passed to the frame, whose closing runs code.

    Generators that the replacement makes or passes on live, and so do those in a variable of the frame that are real: they are closed when
    the frame is left. That other calls drop no such generator is guarded.
    """
    for generator in result.generators:
        why_not = None if usage.has(generator) else generator.why_not_dropped()
        if why_not is not None:
            raise why_not
    for name, value in _dropped_arguments(result, usage):
        if closing_runs_code(value.obj):
            raise Unsupported("generator", f"generator {name}, dropped inside its try or with")
        assert value.source is not None
        result.guards.add(value.source, "call", closing_runs_nothing, f"closing {value.source.text} runs no code")


def _dropped_arguments(result: TraceResult, usage: Usage) -> Iterator[tuple[str, LazyValue]]:
    kept = [settled(value) for value in result.locals.values()]
    for name, value in result.arguments.items():
        if isinstance(value, LazyValue) and type(value.obj) is types.GeneratorType and not usage.has(settled(value)):
            if not any(other is settled(value) for other in kept):
                yield name, value


def closing_runs_code(generator: object) -> bool:
    """Whether a handler covers the place where the generator is suspended, or it waits for an iterator that may have one."""
    if not isinstance(generator, types.GeneratorType):
        return hasattr(generator, "close")
    if not generator.gi_suspended or generator.gi_frame is None:
        return False
    if generator.gi_yieldfrom is not None and closing_runs_code(generator.gi_yieldfrom):
        return True
    model = read(generator.gi_code)
    index = next(i for i, x in enumerate(model.instructions) if x.offset >= generator.gi_frame.f_lasti)
    entry = model.handler_at(index)
    while entry is not None and model.ends_delegation(entry):
        entry = model.handler_at(entry.target)
    return entry is not None and not model.converts_stop_iteration(entry)


def closing_runs_nothing(generator: object) -> bool:
    """The opposite, as a guard."""
    return not closing_runs_code(generator)


def death_runs_code(obj: Any) -> bool:
    """Whether the death of `obj` may run code of the program, as far as this object alone holds what dies with it."""
    kind = type(obj)
    if kind is types.MethodType:
        return death_runs_code(obj.__self__)
    if kind in HOLDING_ITERATORS:
        return any(map(death_runs_code, gc.get_referents(obj)))
    if kind is types.GeneratorType:
        if obj.gi_frame is None:
            return False
        return closing_runs_code(obj) or any(has_finalizer(type(held)) for held in obj.gi_frame.f_locals.values())
    return has_finalizer(kind)


__all__ = ["check_dropped_generators", "closing_runs_code", "closing_runs_nothing", "death_runs_code"]
