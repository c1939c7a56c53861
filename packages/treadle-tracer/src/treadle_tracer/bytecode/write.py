"""Writing: ``write(model)`` assembles a ``CodeModel`` into a code object.

Operands are looked up from ``argval`` (keeping the index in ``arg`` where it already fits), jumps are laid out to a
fixpoint with as many EXTENDED_ARG as they need, CACHE units are put in, positions, exception table and stack size
encoded. Formats: ``Objects/locations.md``, ``Objects/exception_handling_notes.txt``. A model that came from ``read``
is written back byte for byte the same.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Iterable

from treadle_tracer.bytecode.flow import max_stack
from treadle_tracer.bytecode.model import CodeModel, ExceptionEntry, Instruction, Positions
from treadle_tracer.bytecode.opcodes import (
    BINARY_OPS,
    EXTENDED_ARG,
    INTRINSICS_1,
    INTRINSICS_2,
    MERGES_POSITIONS,
    OPS,
    PAIR_PARTS,
    ArgKind,
    Op,
    compare_arg,
)
from treadle_tracer.bytecode.read import BytecodeError


def write(model: CodeModel) -> types.CodeType:
    """The code object of ``model``.

    Local variables keep the order of ``model.varnames``; constants and names are appended to ``model.consts`` and
    ``model.names``. Raises BytecodeError if an instruction names an unknown opcode or variable, a jump goes the wrong
    way for its opcode, or stack depths disagree.
    """
    if not model.instructions:
        raise BytecodeError(f"{model.qualname} has no instructions")
    pools = _Pools(model)
    units = _operands(model, pools)
    starts = _lay_out(model, units)
    stacksize = max_stack(model)
    return types.CodeType(
        model.argcount,
        model.posonlyargcount,
        model.kwonlyargcount,
        len(model.varnames),
        stacksize,
        model.flags,
        _code_bytes(units, starts),
        tuple(pools.consts),
        tuple(pools.names),
        model.varnames,
        model.filename,
        model.name,
        model.qualname,
        model.firstlineno,
        encode_positions(
            zip(_sizes(starts), (i.positions for i in model.instructions), strict=True), model.firstlineno
        ),
        encode_exceptions(model.exceptions, starts),
        model.freevars,
        model.cellvars,
    )


_Unit = tuple[Op, int, tuple[tuple[Op, int], ...]]
"""Opcode, operand, and what stands before it because one instruction was written as two."""


class _Pools:
    """Constants, names and variable slots, with an index of each that is built when first needed."""

    def __init__(self, model: CodeModel) -> None:
        self.consts = list(model.consts)
        self.names = list(model.names)
        self.slots = model.localsplus
        self.qualname = model.qualname
        self._const_index: dict[object, int] | None = None
        self._name_index: dict[str, int] | None = None
        self._local_slot = {name: i for i, name in reversed(list(enumerate(self.slots)))}
        first_free = len(self.slots) - len(model.freevars)
        cells = {name: self._local_slot[name] for name in model.cellvars}
        self._free_slot = {name: first_free + i for i, name in enumerate(model.freevars)} | cells

    def const(self, value: object) -> int:
        if self._const_index is None:
            self._const_index = {id(c): i for i, c in reversed(list(enumerate(self.consts)))}
        # Equal constants stay two objects where they were two: a program may ask `is`.
        index = self._const_index.setdefault(id(value), len(self.consts))
        if index == len(self.consts):
            self.consts.append(value)
        return index

    def name(self, name: str) -> int:
        if self._name_index is None:
            self._name_index = {n: i for i, n in enumerate(self.names)}
        index = self._name_index.setdefault(name, len(self.names))
        if index == len(self.names):
            self.names.append(name)
        return index

    def slot(self, name: str, kind: ArgKind) -> int:
        table = self._free_slot if kind is ArgKind.FREE else self._local_slot
        slot = table.get(name)
        if slot is None:
            known = ", ".join(table) or "none"
            raise BytecodeError(f"{self.qualname} has no {kind.name.lower()} variable {name!r} (known: {known})")
        return slot


def _operands(model: CodeModel, pools: _Pools) -> list[_Unit]:
    """Opcode and operand of every instruction; 0 for jumps, which are laid out afterwards."""
    kinds = ArgKind
    consts, names, slots = model.consts, model.names, model.localsplus
    result: list[_Unit] = []
    for instruction in model.instructions:
        opname, arg, argval, _, _ = instruction
        op = OPS.get(opname)
        if op is None:
            raise BytecodeError(f"{opname} in {model.qualname} is no opcode of this Python version")
        kind, before = op.kind, ()
        if kind is kinds.NONE or kind is kinds.FORWARD or kind is kinds.BACKWARD:
            operand = 0
        elif kind is kinds.LOCAL or kind is kinds.FREE:
            kept = arg is not None and arg < len(slots) and slots[arg] == argval
            operand = arg if kept else pools.slot(argval, kind)
        elif kind is kinds.CONST:
            kept = arg is not None and arg < len(consts) and consts[arg] is argval
            operand = arg if kept else pools.const(argval)
        elif kind is kinds.NAME:
            number = (arg or 0) >> op.shift
            kept = arg is not None and number < len(names) and names[number] == argval
            operand = arg if kept else pools.name(argval) << op.shift | instruction.flag_bits
        elif kind is kinds.LOCAL_PAIR:
            op, operand, before = _pair(instruction, pools)
        else:
            operand = arg if arg is not None else _number(kind, argval)
        result.append((op, operand or 0, before))
    return result


def _pair(instruction: Instruction, pools: _Pools) -> _Unit:
    """A superinstruction, or the two instructions it replaces where a slot does not fit into four bits."""
    slots, arg = pools.slots, instruction.arg
    if arg is not None and arg < 256 and arg >> 4 < len(slots) and arg & 15 < len(slots):
        if (slots[arg >> 4], slots[arg & 15]) == instruction.argval:
            return instruction.op, arg, ()
    first, second = (pools.slot(name, ArgKind.LOCAL) for name in instruction.argval)
    if first < 16 and second < 16:
        return instruction.op, first << 4 | second, ()
    one, two = PAIR_PARTS[instruction.opname]
    return OPS[two], second, ((OPS[one], first),)


def _number(kind: ArgKind, argval: object) -> int:
    """Operand of an instruction that gives its meaning only."""
    match kind, argval:
        case ArgKind.RAW, int():
            return argval
        case ArgKind.COMPARE, str():
            return compare_arg(argval)
        case ArgKind.BINARY, str():
            return BINARY_OPS.index(argval)
        case ArgKind.INTRINSIC_1, str():
            return INTRINSICS_1.index(argval)
        case ArgKind.INTRINSIC_2, str():
            return INTRINSICS_2.index(argval)
    raise BytecodeError(f"no operand for {kind.name} {argval!r}")


def _prefixes(operand: int) -> int:
    """EXTENDED_ARG units that ``operand`` needs."""
    return 0 if operand < 0x100 else 1 if operand < 0x10000 else 2 if operand < 0x1000000 else 3


def _size(unit: _Unit) -> int:
    op, operand, before = unit
    size = 1 + op.caches + (_prefixes(operand) if operand > 255 else 0)
    for one, value in before:
        size += 1 + one.caches + _prefixes(value)
    return size


def _lay_out(model: CodeModel, units: list[_Unit]) -> list[int]:
    """Code unit at which each instruction starts, and the end; fills in the operands of the jumps."""
    sizes = [_size(unit) for unit in units]
    jumps = [i for i, (op, _, _) in enumerate(units) if op.kind is ArgKind.FORWARD or op.kind is ArgKind.BACKWARD]
    while True:
        starts = [0]
        position = 0
        for size in sizes:
            position += size
            starts.append(position)
        grown = False
        for index in jumps:
            op, _, before = units[index]
            target = model.instructions[index].argval
            if not isinstance(target, int) or not 0 <= target < len(units):
                raise BytecodeError(f"{op.name} at index {index} of {model.qualname} jumps to {target!r}")
            distance = starts[target] - starts[index + 1]
            operand = -distance if op.kind is ArgKind.BACKWARD else distance
            if operand < 0:
                raise BytecodeError(f"{op.name} at index {index} of {model.qualname} cannot jump to index {target}")
            units[index] = (op, operand, before)
            size = _size(units[index])
            if size > sizes[index]:
                sizes[index] = size
                grown = True
        if not grown:
            return starts


def _sizes(starts: list[int]) -> Iterable[int]:
    return (following - start for start, following in itertools.pairwise(starts))


def _code_bytes(units: list[_Unit], starts: list[int]) -> bytes:
    out = bytearray()
    for index, (op, operand, before) in enumerate(units):
        for one, value in before:
            _emit(out, one, value, _prefixes(value))
        # A jump laid out in an earlier round may have shrunk since: keep the size that the layout reckoned with.
        reserved = starts[index + 1] - len(out) // 2 - 1 - op.caches
        _emit(out, op, operand, reserved)
    return bytes(out)


def _emit(out: bytearray, op: Op, operand: int, prefixes: int) -> None:
    for place in range(prefixes, 0, -1):
        out.append(EXTENDED_ARG)
        out.append(operand >> 8 * place & 0xFF)
    out.append(op.code)
    out.append(operand & 0xFF)
    if op.caches:
        out.extend(bytes(2 * op.caches))


def encode_exceptions(entries: Iterable[ExceptionEntry], starts: list[int]) -> bytes:
    """The exception table; ``starts`` holds the code unit of each instruction and of the end."""
    out = bytearray()
    for entry in sorted(entries, key=lambda e: e.start):
        first, end = starts[entry.start], starts[entry.end + 1]
        _varint_high_first(out, first, 0x80)
        for number in (end - first, starts[entry.target], entry.depth << 1 | entry.lasti):
            _varint_high_first(out, number, 0)
    return bytes(out)


def _varint_high_first(out: bytearray, number: int, mark: int) -> None:
    """Six-bit groups, highest first, bit 6 on all but the last; ``mark`` goes onto the first byte."""
    shift = max(0, (number.bit_length() - 1) // 6 * 6)
    while shift:
        out.append(mark | 0x40 | number >> shift & 63)
        mark = 0
        shift -= 6
    out.append(mark | number & 63)


def encode_positions(sized: Iterable[tuple[int, Positions]], firstlineno: int) -> bytes:
    """The location table of instructions given as (code units, positions)."""
    out = bytearray()
    line = firstlineno
    current: Positions | None = None
    units = 0
    for size, positions in sized:
        if MERGES_POSITIONS and positions == current:
            units += size
            continue
        if current is not None:
            line = _location(out, units, current, line)
        current, units = positions, size
    if current is not None:
        _location(out, units, current, line)
    return bytes(out)


def _location(out: bytearray, units: int, positions: Positions, line: int) -> int:
    """Append the entries of one run of code units (eight at most to an entry); returns the line reached."""
    while units > 0:
        line = _location_entry(out, min(units, 8) - 1, positions, line)
        units -= 8
    return line


_NO_COLUMNS, _LONG, _NOWHERE = 13, 14, 15


def _location_entry(out: bytearray, length: int, positions: Positions, line: int) -> int:
    start, end, column, end_column = positions
    if start is None:
        out.append(0x80 | _NOWHERE << 3 | length)
        return line
    delta, lines = start - line, 0 if end is None else end - start
    if column is None or end_column is None:
        if lines == 0:
            out.append(0x80 | _NO_COLUMNS << 3 | length)
            _signed_varint(out, delta)
            return start
        column = end_column = -1
    elif lines == 0 and delta == 0 and column < 80 and 0 <= end_column - column < 16:
        out.append(0x80 | column >> 3 << 3 | length)
        out.append((column & 7) << 4 | end_column - column)
        return start
    elif lines == 0 and 0 <= delta < 3 and column < 128 and end_column < 128:
        out.append(0x80 | 10 + delta << 3 | length)
        out.append(column)
        out.append(end_column)
        return start
    out.append(0x80 | _LONG << 3 | length)
    _signed_varint(out, delta)
    for number in (lines, column + 1, end_column + 1):
        _varint_low_first(out, number)
    return start


def _signed_varint(out: bytearray, number: int) -> None:
    _varint_low_first(out, -number << 1 | 1 if number < 0 else number << 1)


def _varint_low_first(out: bytearray, number: int) -> None:
    """Six-bit groups, lowest first, bit 6 on all but the last."""
    while number >= 64:
        out.append(0x40 | number & 63)
        number >>= 6
    out.append(number)
