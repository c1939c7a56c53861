"""Reading: ``read(code)`` turns a code object into a ``CodeModel``.

``co_code`` gives every opcode in its original form: quickened, specialised and instrumented opcodes are undone
(``Objects/codeobject.c``, ``_PyCode_GetCode``). Exception table: ``Objects/exception_handling_notes.txt``; positions:
``Objects/locations.md``, decoded by ``co_positions()``, one item per code unit of two bytes.
"""

from __future__ import annotations

import types

from treadle_tracer.bytecode.model import CodeModel, ExceptionEntry, Instruction
from treadle_tracer.bytecode.opcodes import (
    BINARY_OPS,
    BY_CODE,
    COMPARE_OPS,
    EXTENDED_ARG,
    INTRINSICS_1,
    INTRINSICS_2,
    ArgKind,
    Op,
)


class BytecodeError(ValueError):
    """A code object or model that is not valid for the running interpreter; the message says where and why."""


def read(code: types.CodeType) -> CodeModel:
    """The model of ``code``. Raises BytecodeError on bytes that no CPython compiler of this version produces."""
    if not isinstance(code, types.CodeType):
        raise TypeError(f"read() needs a code object, got {type(code).__name__}")
    raw = code.co_code
    decoded, index_of = _decode(raw, code)
    exceptions = tuple(_exceptions(code.co_exceptiontable, index_of, len(decoded)))
    empty = header(code).replace(exceptions=exceptions)
    return empty.replace(instructions=_resolve(decoded, index_of, empty, list(code.co_positions())))


def header(code: types.CodeType) -> CodeModel:
    """A model with all attributes of ``code`` and no instructions yet."""
    return CodeModel(
        instructions=(),
        exceptions=(),
        name=code.co_name,
        qualname=code.co_qualname,
        filename=code.co_filename,
        firstlineno=code.co_firstlineno,
        flags=code.co_flags,
        argcount=code.co_argcount,
        posonlyargcount=code.co_posonlyargcount,
        kwonlyargcount=code.co_kwonlyargcount,
        varnames=code.co_varnames,
        cellvars=code.co_cellvars,
        freevars=code.co_freevars,
        consts=code.co_consts,
        names=code.co_names,
    )


_Decoded = list[tuple[Op, int, int]]


def _decode(raw: bytes, code: types.CodeType) -> tuple[_Decoded, dict[int, int]]:
    """All instructions as (op, operand, code unit); the index of each by the unit it starts at, prefixes included."""
    decoded: _Decoded = []
    index_of: dict[int, int] = {}
    by_code = BY_CODE
    unit, start, units, extended = 0, 0, len(raw) // 2, 0
    while unit < units:
        number = raw[2 * unit]
        arg = raw[2 * unit + 1] | extended
        if number == EXTENDED_ARG:
            extended = arg << 8
            unit += 1
            continue
        op = by_code[number]
        if op is None:
            raise BytecodeError(f"unknown opcode {number} at offset {2 * unit} of {code.co_qualname}")
        index_of[start] = len(decoded)
        decoded.append((op, arg, unit))
        unit += 1 + op.caches
        start, extended = unit, 0
    return decoded, index_of


def _resolve(decoded: _Decoded, index_of: dict[int, int], model: CodeModel, positions: list) -> tuple[Instruction, ...]:
    consts, names, slots = model.consts, model.names, model.localsplus
    kinds = ArgKind
    result: list[Instruction] = []
    new = tuple.__new__
    try:
        for op, arg, unit in decoded:
            kind = op.kind
            operand: int | None = arg
            argval: object = arg
            if kind is kinds.NONE:
                operand = argval = None
            elif kind is kinds.LOCAL or kind is kinds.FREE:
                argval = slots[arg]
            elif kind is kinds.NAME:
                argval = names[arg >> op.shift]
            elif kind is kinds.CONST:
                argval = consts[arg]
            elif kind is kinds.FORWARD:
                argval = index_of[unit + 1 + op.caches + arg]
            elif kind is kinds.BACKWARD:
                argval = index_of[unit + 1 + op.caches - arg]
            elif kind is kinds.LOCAL_PAIR:
                argval = (slots[arg >> 4], slots[arg & 15])
            elif kind is not kinds.RAW:
                argval = _OPERATORS[kind][arg >> op.shift]
            result.append(new(Instruction, (op.name, operand, argval, 2 * unit, positions[unit])))
    except LookupError as error:
        op, arg, unit = decoded[len(result)]
        raise BytecodeError(f"{op.name} {arg} at offset {2 * unit} of {model.qualname} points at nothing") from error
    return tuple(result)


_OPERATORS: dict[ArgKind, tuple[str, ...]] = {
    ArgKind.COMPARE: COMPARE_OPS,
    ArgKind.BINARY: BINARY_OPS,
    ArgKind.INTRINSIC_1: INTRINSICS_1,
    ArgKind.INTRINSIC_2: INTRINSICS_2,
}


def _exceptions(table: bytes, index_of: dict[int, int], count: int) -> list[ExceptionEntry]:
    """Entries of start, length, target, depth*2+lasti: varints of six-bit groups, highest first (bit 6: go on)."""
    numbers: list[int] = []
    value = 0
    for byte in table:
        value = value << 6 | (byte & 63)
        if not byte & 64:
            numbers.append(value)
            value = 0
    entries = []
    for start, length, target, depth in zip(*[iter(numbers)] * 4, strict=True):
        end = index_of.get(start + length, count) - 1
        entries.append(ExceptionEntry(index_of[start], end, index_of[target], depth >> 1, bool(depth & 1)))
    return entries
