"""Reductions down columns: the contiguous axis is an outer one, so whole vectors of results are accumulated at once.

    for o0 < 32: for j0 < 12544: v1 += b0[32*j0 + o0]         becomes

    for j0 < 12544: for l < 32: v1[l] += b0[32*j0 + l]

The strided loop reads one element of every cache line at a time; mean over height and width of a channels-last
1x32x112x112 tensor takes 0.30 ms with it and 0.03 ms in columns (one thread, AVX-512).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from treadle_codegen.ir.loops import Axis, Instr, Loop, symbols_of
from treadle_codegen.ir.ops import OPS, Cost
from treadle_codegen.schedule.access import loop_reads, loop_writes, split_index
from treadle_codegen.schedule.kernel import Kernel, linear_coefficients_of
from treadle_codegen.targets.cpp.ops import C_TYPES, constant
from treadle_codegen.targets.cpp.section import (
    BLOCK,
    IDENTITY,
    POSITIONS,
    Accumulator,
    SectionPrinter,
    addresses_through_data,
    why_varies,
    worst,
)
from treadle_codegen.targets.renderer import split_at_reduce
from treadle_shapes.expr import Expr, Symbol

if TYPE_CHECKING:
    from treadle_codegen.targets.cpp.renderer import KernelWriter

_WIDTH = 64  # columns per block where nothing better divides their number
_MAX_WIDTH = 256  # accumulators stay in the first-level cache
_MIN_COLUMNS = 8
_ROWS = 4  # rows per pass over the accumulators
_LIGHT_BODY = 16  # instructions


def why_not_columns(kernel: Kernel) -> str | None:
    """Why a kernel is not rendered in columns, or None."""
    if not kernel.sections or not kernel.outer or not kernel.sections[0].axes:
        return "nothing to reduce over or to"
    if any(later.axes for later in kernel.sections[1:]):
        return "a second loop nest below the outer axes"
    if any(local.is_row for local in kernel.locals.values()):
        return "rows stay inside the kernel"
    section, column = kernel.sections[0], kernel.outer[-1]
    if not all(member.reduce_axes for member in section.members):
        return "not all members reduce"
    if isinstance(column.extent, int) and column.extent < _MIN_COLUMNS:
        return "too few columns"
    unit = False
    written = {access.buffer for member in section.members for access in loop_writes(member)}
    for member in section.members:
        for instr in member.body:
            if instr.op == "indirect_store" or (instr.op == "store" and instr.attr.mode == "add"):
                return "memory is written to through data or added to"
            if instr.op == "indirect_load":
                if not _is_row_of_data(member, instr, column.symbol, written):
                    return "positions that are data change along the columns"
                unit = True
        for access in loop_reads(member):
            if access.index is None or not isinstance(access.index, Expr):
                continue
            strides = linear_coefficients_of(access.index, section.axes[-1].symbol, column.symbol)
            if strides is None or strides[1] not in (0, 1) or strides == (1, 1):
                return "not contiguous along the columns"
            unit = unit or strides[1] == 1
    return None if unit else "nothing is read along the columns"


def _is_row_of_data(loop: Loop, load: Instr, column: Symbol, written: set[str]) -> bool:
    """Whether a load reads along the columns what stands in memory one after the other: `table[index[row], column]`."""
    stride = 0
    for k, step in zip(load.args, load.attr[1], strict=True):
        position = loop.body[k]
        if why_varies(loop, k, column, written) is None:
            continue
        split = split_index(position.attr, [column]) if position.op == "index" else None
        if split is None or column in symbols_of(split[1]):
            return False
        coefficient = split[0][0]
        if not isinstance(coefficient, int) or not isinstance(step, int):
            return False
        stride += coefficient * step
    return stride == 1


def block_width(columns: Axis) -> int:
    """Columns per block: a multiple of the vector length that divides their number, if there is one."""
    n = columns.extent
    if not isinstance(n, int):
        return _MAX_WIDTH
    if n <= _MAX_WIDTH:
        return n
    return next((w for w in range(_MAX_WIDTH, 15, -16) if n % w == 0), _WIDTH)


class ColumnPrinter(SectionPrinter):
    """Writes a kernel for which `why_not_columns` is None, from the loop over the columns on.

    The first section is the reduction; later ones are scalars per outer point and stand in the last loop over the lanes.
    """

    def write(self) -> None:
        writer, axes, column = self.writer, self.section.axes, self.writer.kernel.outer[-1]
        width, extent, name = block_width(column), writer.index(column.extent), column.symbol.name
        self.checks = addresses_through_data(writer.kernel.loops)
        step = str(width)
        if not isinstance(column.extent, int):
            # A specialised kernel knows their number; this is the width that `block_width` has where nothing divides it.
            step = "width"
            constant_p = f"__builtin_constant_p({extent}) && {extent} > {width}"
            writer.line(f"const i64 width = {constant_p} ? {_WIDTH} : {width};")
        if self.parallel:
            writer.line(f"#pragma omp parallel for num_threads({writer.threads}){self._bad_clause()}")
        writer.line(f"for (i64 {name}b = 0; {name}b < {extent}; {name}b += {step}) {{")
        writer.depth += 1
        self.lanes = str(width)
        if not isinstance(column.extent, int) or column.extent % width:
            self.lanes = "lanes"
            writer.line(f"const i64 lanes = {extent} - {name}b < {step} ? {extent} - {name}b : {step};")
        self._declare_columns(width)
        for axis in axes[:-1]:
            writer.open_loop(axis)
        totals = [acc for acc in self.accumulators.values() if acc.total is not None]
        self._write_rows(axes[-1], totals)
        if totals:
            for acc in totals:
                writer.line(f"for (i64 l = 0; l < {self.lanes}; ++l) {acc.total}[l] += {acc.name}[l];")
            writer.close(1)
        writer.close(len(axes) - 1)
        self.checks_inside = self.checks
        self._open_lanes()
        self._finish()
        for later in writer.kernel.sections[1:]:
            SectionPrinter(writer, later, self.later_reads, parallel=False).write()
        writer.close(2)

    def _declare_columns(self, width: int) -> None:
        rows = [axis.extent for axis in self.section.axes]
        few = all(isinstance(n, int) for n in rows) and math.prod(n for n in rows if isinstance(n, int)) <= BLOCK
        for m, loop in enumerate(self.section.members):
            for k, instr in enumerate(loop.body):
                if instr.op != "reduce":
                    continue
                dtype = loop.body[instr.args[0]].dtype
                acc = Accumulator(instr.attr, self.writer.fresh(), dtype)
                self.accumulators[(m, k)] = acc
                self.writer.line(f"alignas(64) {acc.c_type} {acc.name}[{width}];")
                if acc.kind in POSITIONS:
                    self.writer.line(f"alignas(64) {self._position_type(acc)} {acc.name}p[{width}];")
                    self._fill(acc.name + "p", "0")
                if acc.kind == "sum" and dtype.is_floating_point and not few:
                    acc.total = acc.name + "t"
                    self.writer.line(f"alignas(64) double {acc.total}[{width}];")
                    self._fill(acc.total, "0")
                else:
                    self._fill(acc.name, self._first(acc))
                if self._notes_nan(acc):
                    self.writer.line(f"alignas(64) int {acc.name}n[{width}];")
                    self._fill(acc.name + "n", "0")

    def _position_type(self, acc: Accumulator) -> str:
        """As wide as the values, where so many bits hold every position: g++ converts masks between widths at some cost."""
        rows = [axis.extent for axis in self.section.axes]
        few = all(isinstance(n, int) for n in rows) and math.prod(n for n in rows if isinstance(n, int)) < 1 << 31
        return "i32" if few and acc.dtype.itemsize <= 4 else "i64"

    @staticmethod
    def _notes_nan(acc: Accumulator) -> bool:
        return acc.kind in ("max", "min") and acc.dtype.is_floating_point

    @staticmethod
    def _first(acc: Accumulator) -> str:
        return worst(acc) if acc.kind in ("max", "min", *POSITIONS) else constant(IDENTITY[acc.kind], acc.dtype)

    def _fill(self, array: str, value: str) -> None:
        self.writer.line(f"for (i64 l = 0; l < {self.lanes}; ++l) {array}[l] = {value};")

    def _write_rows(self, axis: Axis, totals: list[Accumulator]) -> None:
        """The innermost reduction loop, in blocks where long float sums have to be added up in double (the block is left open).

        Light bodies take several rows per pass over the accumulators, which lie in memory when there are many columns.
        """
        name, extent = axis.symbol.name, self.writer.index(axis.extent)
        first, end = "0", extent
        if totals:
            self.writer.line(f"for (i64 {name}b = 0; {name}b < {extent}; {name}b += {BLOCK}) {{")
            self.writer.depth += 1
            for acc in totals:
                self._fill(acc.name, "0")
            self.writer.line(f"const i64 {name}e = {name}b + {BLOCK} < {extent} ? {name}b + {BLOCK} : {extent};")
            first, end = f"{name}b", f"{name}e"
        if not self.checks and self._is_light() and not (isinstance(axis.extent, int) and axis.extent < 2 * _ROWS):
            self.writer.line(f"i64 {name}q = {first};")
            self.writer.line(f"for (; {name}q + {_ROWS} <= {end}; {name}q += {_ROWS}) {{")
            self.writer.depth += 1
            self._open_lanes()
            for row in range(_ROWS):
                self.writer.line(f"{{ const i64 {name} = {name}q + {row};")
                self.writer.depth += 1
                self.inner_values.clear()  # of another row
                self._write_members()
                self.writer.close(1)
            self.writer.close(2)
            first = f"{name}q"
        self.writer.line(f"for (i64 {name} = {first}; {name} < {end}; ++{name}) {{")
        self.writer.depth += 1
        self.inner_values.clear()
        self._check_before(self.writer.kernel.outer[-1])
        self._open_lanes()
        self._write_members()
        self.writer.close(2)

    def _is_light(self) -> bool:
        """Whether repeating the body costs little text and few registers."""
        costs = [OPS[instr.op].cost for member in self.section.members for instr in member.body if instr.op in OPS]
        return len(costs) <= _LIGHT_BODY and max(costs, default=0) < Cost.DIVIDE

    def _write_members(self) -> None:
        self.inner_stored.clear()
        for m, loop in enumerate(self.section.members):
            self._instructions(m, loop, 0, split_at_reduce(loop), outer=False)

    def _open_lanes(self) -> None:
        name = self.writer.kernel.outer[-1].symbol.name
        self.writer.line(f"#pragma omp simd{self._simd_clauses(())}")
        self.writer.line(f"for (i64 l = 0; l < {self.lanes}; ++l) {{")
        self.writer.depth += 1
        self.writer.line(f"const i64 {name} = {name}b + l;")

    def _accumulate(self, acc: Accumulator, value: str) -> None:
        if self._notes_nan(acc):
            self.writer.line(f"{acc.name}n[l] |= {value} != {value};")
        place = f"{acc.name}[l]"
        if acc.kind in POSITIONS:
            self._accumulate_position(acc, value)
        elif acc.kind in ("max", "min"):
            self.writer.line(f"{place} = {value} {'>' if acc.kind == 'max' else '<'} {place} ? {value} : {place};")
        else:
            operator = {"sum": "+", "prod": "*", "any": "|", "all": "&"}[acc.kind]
            self.writer.line(f"{place} = ({acc.c_type})({place} {operator} {value});")

    def _accumulate_position(self, acc: Accumulator, value: str) -> None:
        """Rows come in their order, and equal values are not better: the first of them stays."""
        better, best = self.writer.fresh(), f"{acc.name}[l]"
        condition = f"{value} {'>' if acc.kind == 'argmax' else '<'} {best}"
        if acc.dtype.is_floating_point:
            condition = f"({condition}) | (({value} != {value}) & ({best} == {best}))"
        position = f"({self._position_type(acc)})({self._position()})"
        self.writer.line(f"const bool {better} = {condition};")
        self.writer.line(f"{best} = {better} ? {value} : {best};")
        self.writer.line(f"{acc.name}p[l] = {better} ? {position} : {acc.name}p[l];")

    def _finish(self) -> None:
        for (m, k), acc in self.accumulators.items():
            name = self.writer.fresh()
            value = f"{acc.name}[l]" if acc.total is None else f"({acc.c_type}){acc.total}[l]"
            if acc.kind in POSITIONS:
                value = f"(i64){acc.name}p[l]"
            elif self._notes_nan(acc):
                value = f"{acc.name}n[l] ? {constant(float('nan'), acc.dtype)} : {value}"
            c_type = "i64" if acc.kind in POSITIONS else C_TYPES[acc.dtype]
            self.writer.line(f"const {c_type} {name} = {value};")
            self.results[(m, k)] = name
        for m, loop in enumerate(self.section.members):
            self._instructions(m, loop, split_at_reduce(loop), len(loop.body), outer=True)


def column_printer(writer: KernelWriter, later_reads: set[str], *, parallel: bool) -> ColumnPrinter:
    """The printer for all sections of the writer's kernel."""
    return ColumnPrinter(writer, writer.kernel.sections[0], later_reads, parallel=parallel)
