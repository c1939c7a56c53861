"""Output of the traced program: calls that print, warn or log wait until the graph has run, and are then made in order.

What they show is fixed when the program makes them (`deferred_text.snapshot`). Where the graph raises, Python runs the program instead, and
makes them itself.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import NONE, Constant
from treadle_tracer.values.class_lookup import find_in_mro
from treadle_tracer.values.constants import is_trusted_name
from treadle_tracer.values.deferred_text import snapshot
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_STREAM_LIBRARIES = frozenset({"_pytest", "ipykernel", "colorama"})


def queue(tx: TraceContext, function: Callable[..., Any], *values: Value) -> None:
    """Have `function(*values)` called after the graph. Raises Unsupported where that would show something else than now."""
    if not tx.symbols.defers:
        raise Unsupported("output", getattr(function, "__name__", "output"))
    copies = []
    for value in values:
        copy = value if is_stream(value) else snapshot(tx, value)
        if copy is None:
            raise Unsupported("format", value.describe())
        copies.append(copy)
    tx.mutations.output(function, tuple(copies))


def is_stream(value: Value) -> bool:
    """Whether the value is an outside text stream whose `write` does nothing but write."""
    obj = None if value.source is None else getattr(value, "obj", None)
    return obj is not None and why_not_stream(obj) is None


def why_not_stream(obj: Any) -> str | None:
    """Why writing to this object may do something that the trace would have to follow."""
    if not isinstance(obj, io.TextIOBase) and obj not in (sys.stdout, sys.stderr):
        return "no text stream"
    write = find_in_mro(type(obj).__mro__, "write")[0]
    if hasattr(write, "__code__"):
        module = str(getattr(write, "__module__", ""))
        if not is_trusted_name(module) and module.partition(".")[0] not in _STREAM_LIBRARIES:
            return f"{type(obj).__qualname__}.write is a function of the program"
    return None


def stream_method(tx: TraceContext, stream: Value, name: str, args: list[Value]) -> Value | None:
    """`stream.write(text)` and `stream.flush()`; None for other methods and for streams that are no plain ones."""
    if name not in ("write", "flush") or not is_stream(stream):
        return None
    if name == "flush":
        queue(tx, _flush, stream)
        return NONE
    (text,) = args
    if text.python_type() is not str:
        return None
    if not text.is_constant():
        raise Unsupported("format", "the length of a text that the graph computes")
    queue(tx, _write, stream, text)
    return Constant(len(text.constant()))


def _write(stream: Any, text: str) -> None:
    stream.write(text)


def _flush(stream: Any) -> None:
    stream.flush()
