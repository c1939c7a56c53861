"""Traces a call without the frame hook, for tests and for looking at graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from treadle_tracer.options import TracerOptions
from treadle_tracer.room import room_to_recurse
from treadle_tracer.source import LocalSource, Source
from treadle_tracer.trace.result import TraceResult
from treadle_tracer.trace.root import inline_call, run_body
from treadle_tracer.trace.tracer import Tracer
from treadle_tracer.values.value import Value


def new_tracer(
    dynamic: Mapping[Source, Mapping[int, int]] | None = None, options: TracerOptions | None = None
) -> Tracer:
    """A tracer without a frame, as `trace_function` uses it."""
    tx = Tracer(inline_call, run_body, dynamic, options)
    tx.root_globals = {}
    return tx


def trace_function(
    function: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic: Mapping[Source, Mapping[int, int]] | None = None,
    options: TracerOptions | None = None,
) -> TraceResult:
    """Evaluate `function(*args, **kwargs)` symbolically, a module or bound method included.

    Sources of the arguments are locals named `args[0]`, ... and by keyword. Raises Unsupported where the frame would break.
    """
    tx = new_tracer(dynamic, options)
    with room_to_recurse():
        return _trace(tx, function, args, kwargs or {})


def _trace(tx: Tracer, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> TraceResult:
    try:
        callee = tx.wrap(function, LocalSource("function"))
        values: list[Value] = [tx.wrap(arg, LocalSource(f"arg{i}")) for i, arg in enumerate(args)]
        named = {name: tx.wrap(value, LocalSource(name)) for name, value in kwargs.items()}
        result = callee.call(tx, values, named)
        tx.contexts.require_none()
        tx.close_writes()
        changes = tx.state_changes()
        tx.close_state()
    except BaseException:
        tx.abandon()
        raise
    return TraceResult(
        "return", tx.graph, tx.guards, tx.mutations, value=result, state_changes=changes, env=tx.symbols.env
    )
