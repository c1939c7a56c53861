"""A built host program as bytes, and back.

Only programs with static sizes and without constant tensors have a record: their parts are texts, numbers and tuples. Dtypes and
operators stand in it by name. The bytes are those of `marshal`, which Python keeps its own byte code in; they hold the byte code of the
host function too. They may be read only from files that nobody else can write (`cache.read_sealed`).
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from treadle_codegen.host.externs import callee_of
from treadle_codegen.host.host_program import HostProgram
from treadle_codegen.ir.loops import Buffer, BufferKind, View
from treadle_shapes.torch import named_binding

_FORMAT = "treadle host program 2"
_LITERALS = (type(None), bool, int, float, complex, str)
_NAMED: Mapping[str, type] = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}


class Built(NamedTuple):
    """A host program with its kernels. source: the unit of all kernels as text; entries: names of its entry points."""

    source: str
    entries: list[str]
    program: HostProgram


class _NoRecord(Exception):
    """A part is not plain."""


def to_bytes(built: Built) -> bytes | None:
    """The record of a program, or None if it has none."""
    program = built.program
    if program.symbols or program.numbers or program.tensors or program.pool or program.compared or program.state:
        return None
    try:
        constants = [_constant(k, value, program.callees) for k, value in enumerate(program.constants)]
        buffers = [
            (b.name, *_constant(-1, b.dtype, {}), _ints(b.shape), _ints(b.strides)) for b in program.buffers.values()
        ]
        views = [view if isinstance(view, str) else _view(view) for view in program.views]
        statics = [_view(view) for view in program.statics]
    except _NoRecord:
        return None
    texts = (built.source, built.entries, program.source, program.compiled())
    tables = (program.inputs, program.slots, program.spans, buffers, views, statics, constants)
    return marshal.dumps((_FORMAT, texts, tables))


def from_bytes(data: bytes, replacements: Mapping[str, Callable[..., Any]]) -> Built | None:
    """The program of a record, or None for other bytes. replacements: callables of the target in the place of operators."""
    try:
        found = marshal.loads(data)
    except (EOFError, TypeError, ValueError):
        return None
    if not isinstance(found, tuple) or len(found) != 3 or found[0] != _FORMAT:
        return None
    _, (source, entries, text, code), (inputs, slots, spans, buffers, views, statics, constants) = found
    temporaries = {
        name: Buffer(name, getattr(torch, dtype), shape, strides, BufferKind.TEMP)
        for name, _, dtype, shape, strides in buffers
    }
    made = [_from_constant(kind, value, replacements) for kind, value in constants]
    callees = {k: _operator(value) for k, (kind, value) in enumerate(constants) if kind in ("binding", "callee")}
    keys = [view if isinstance(view, str) else View(*view) for view in views]
    kept = [View(*view) for view in statics]
    program = HostProgram(text, made, callees, {}, inputs, slots, spans, temporaries, keys, kept, [], code=code)
    return Built(source, entries, program)


def _constant(k: int, value: Any, callees: Mapping[int, Any]) -> tuple[str, Any]:
    """The kind of a constant of the host function, and its description."""
    if k in callees:
        op = callees[k]
        return "binding" if value is named_binding(op) else "callee", str(op)
    if type(value) in _LITERALS:
        return "literal", value
    if type(value) is torch.device:
        return "device", str(value)
    for kind, named in _NAMED.items():
        if type(value) is named:
            return kind, str(value).removeprefix("torch.")
    raise _NoRecord


def _from_constant(kind: str, value: Any, replacements: Mapping[str, Callable[..., Any]]) -> Any:
    if kind == "literal":
        return value
    if kind == "callee":
        return callee_of(_operator(value), replacements)
    if kind == "binding":
        return replacements.get(value) or named_binding(_operator(value))
    return torch.device(value) if kind == "device" else getattr(torch, value)


def _operator(name: str) -> Any:
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def _view(view: View) -> tuple[Any, ...]:
    (offset,) = _ints((view.offset,))
    return view.buffer, _ints(view.shape), _ints(view.strides), offset


def _ints(numbers: Sequence[Any]) -> tuple[int, ...]:
    if any(type(n) is not int for n in numbers):
        raise _NoRecord
    return tuple(numbers)
