"""Output of the traced program: calls that print, warn or log wait until the graph has run, and are then made in order.

What they show is fixed when the program makes them (`deferred_text.snapshot`). Where the graph raises, Python runs the program instead, and
makes them itself.
"""

from __future__ import annotations

import io
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle_tracer.class_facts import defining_package, mro_of, own_dict
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import NONE, Constant
from treadle_tracer.values.class_lookup import find_in_mro
from treadle_tracer.values.constants import is_trusted_function
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
    if not isinstance(obj, io.TextIOBase) and (obj is None or (obj is not sys.stdout and obj is not sys.stderr)):
        return False
    return not any(name in (own_dict(obj) or ()) or _is_of_program(type(obj), name) for name in ("write", "flush"))


def _is_of_program(cls: type, name: str) -> bool:
    """Whether a method is a function of the program, which may do something that the trace would have to follow."""
    method = find_in_mro(mro_of(cls), name)[0]
    if not isinstance(method, types.FunctionType):
        return hasattr(method, "__code__")
    return not is_trusted_function(method) and defining_package(method) not in _STREAM_LIBRARIES


def stream_method(
    tx: TraceContext, stream: Value, name: str, args: list[Value], kwargs: dict[str, Value]
) -> Value | None:
    """`stream.write(text)` and `stream.flush()`; None for other calls and for streams that are no plain ones."""
    form = (name, len(args), len(kwargs))
    if form not in (("write", 1, 0), ("flush", 0, 0)) or not is_stream(stream):
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
