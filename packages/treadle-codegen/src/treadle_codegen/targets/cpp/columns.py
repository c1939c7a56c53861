"""Reductions down columns: the contiguous axis is an outer one, so whole vectors of results are accumulated at once.

    for o0 < 32: for j0 < 12544: v1 += b0[32*j0 + o0]         becomes

    for j0 < 12544: for l < 32: v1[l] += b0[32*j0 + l]

The strided loop reads one element of every cache line at a time; mean over height and width of a channels-last
1x32x112x112 tensor takes 0.30 ms with it and 0.03 ms in columns (one thread, AVX-512).

Several reductions one after the other (log_softmax, a layer norm over channels) are nests of the same block of columns, with arrays for
what one leaves to the next.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from treadle_codegen.ir.loops import Axis, Instr, IntLike, Loop, symbols_of
from treadle_codegen.ir.ops import OPS, POSITIONS, Cost
from treadle_codegen.schedule.access import loop_reads, loop_writes, split_index
from treadle_codegen.schedule.kernel import Kernel, Section, linear_coefficients_of
from treadle_codegen.schedule.positions import checks_positions
from treadle_codegen.targets.cpp.dependence import addresses_through_data, why_varies
from treadle_codegen.targets.cpp.ops import C_TYPES, MEMORY_TYPES, constant
from treadle_codegen.targets.cpp.section import (
    BLOCK,
    IDENTITY,
    Accumulator,
    SectionPrinter,
    worst,
)
from treadle_codegen.targets.renderer import split_at_reduce
from treadle_shapes.expr import Expr, Symbol

if TYPE_CHECKING:
    from treadle_codegen.targets.cpp.renderer import KernelWriter

_MAX_WIDTH = 256  # where a second nest should find in the cache what the first one read
_MAX_BYTES = 32 << 10  # of accumulators where there is one nest: the first-level cache
_MIN_COLUMNS = 8
# Instructions, and as many rows per pass over the accumulators where there are no more of them. Long rows gain from many:
# maxima of 4096 rows of 1000 take 1.0 ms with 4 and 0.5 with 16. Sums of 50,000 rows of 64 take 0.18 and 0.22 ms.
_ROWS_OF_LONG = ((6, 16), (12, 8), (24, 4))
_ROWS_OF_SHORT = ((16, 4),)

# Rows that are added up in one go; longer columns add up these sums in double. (A column has one accumulator, a row one for each lane.)
# Largest errors of sums of 4096 rows of 768 normal numbers, against float64: 6.5e-5, in runs of 4096 6.7e-4, eager 4.6e-5; of 50,000 rows
# of 64: 1.4e-4, 9.6e-4, 1.5e-4. They take the same time.
_RUN = 128


def why_not_columns(kernel: Kernel) -> str | None:
    """Why a kernel is not rendered in columns, or None."""
    if not kernel.sections or not kernel.outer or not kernel.sections[0].axes:
        return "nothing to reduce over or to"
    if any(local.is_row for local in kernel.locals.values()):
        return "rows stay inside the kernel"
    column, nests = kernel.outer[-1], [section for section in kernel.sections if section.axes]
    if not all(member.reduce_axes for member in nests[0].members):
        return "not all members reduce"
    if len(nests) > 1 and addresses_through_data(kernel.loops):
        return "positions that are data, in one of several loop nests"
    if isinstance(column.extent, int) and column.extent < _MIN_COLUMNS:
        return "too few columns"
    unit = False
    for section in nests:
        for member in section.members:
            reason, reads_unit = _along_columns(section, member, column.symbol)
            if reason is not None:
                return reason
            unit = unit or reads_unit
    return None if unit else "nothing is read along the columns"


def _along_columns(section: Section, member: Loop, column: Symbol) -> tuple[str | None, bool]:
    """Why a loop is not computed in columns, or None; and whether it reads neighbours along them."""
    unit = False
    written = {access.buffer for loop in section.members for access in loop_writes(loop)}
    for instr in member.body:
        if instr.op == "indirect_store" or (instr.op == "store" and instr.attr.mode == "add"):
            return "memory is written to through data or added to", False
        if instr.op == "indirect_load":
            if not _is_row_of_data(member, instr, column, written):
                return "positions that are data change along the columns", False
            unit = True
    for access in loop_reads(member):
        if access.index is None or not isinstance(access.index, Expr):
            continue
        strides = linear_coefficients_of(access.index, section.axes[-1].symbol, column)
        if strides is None or strides[1] not in (0, 1) or strides == (1, 1):
            return "not contiguous along the columns", False
        unit = unit or strides[1] == 1
    for access in () if member.reduce_axes else loop_writes(member):
        split = None if access.index is None else split_index(access.index, [column])
        if split is None or split[0][0] != 1:
            return "what is stored is not contiguous along the columns", False
    return None, unit


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


def block_width(columns: Axis, most: int = _MAX_WIDTH) -> int:
    """Columns per block: a multiple of the vector length that divides their number, or else the one that makes blocks most nearly equal.

    Narrow blocks read less of a row at a time: a sum of rows of 1,021 gathered numbers took twice as long in blocks of 64. In wide ones it
    does not matter whether the compiler knows their length.
    """
    n = columns.extent
    if not isinstance(n, int):
        return most
    if n <= most:
        return n
    blocks = -(-n // most)
    equal = -(-n // (16 * blocks)) * 16
    return next((w for w in range(most, 63, -16) if n % w == 0), equal) if most <= _MAX_WIDTH else equal


def _are_few(section: Section, run: int) -> bool:
    """Whether so few numbers are added up that one sum in their own dtype is as good as sums of runs; or the runs would be too short."""
    rows = [axis.extent for axis in section.axes]
    if not all(isinstance(n, int) for n in rows):
        return False
    count = math.prod(n for n in rows if isinstance(n, int))
    return count <= run or (count <= BLOCK and isinstance(rows[-1], int) and rows[-1] < run // 2)


def _run_of(dtype: torch.dtype) -> int:
    """Doubles gain nothing from sums in double."""
    return BLOCK if dtype is torch.float64 else _RUN


class ColumnPrinter(SectionPrinter):
    """Writes a kernel for which `why_not_columns` is None, from the loop over the columns on.

    Sections with axes are loop nests, the first of them a reduction. Those without are scalars per outer point, and stand in a loop over
    the lanes behind the nest before them.
    """

    def write(self) -> None:
        writer, column = self.writer, self.writer.kernel.outer[-1]
        width, extent, name = block_width(column, self._most_columns()), writer.index(column.extent), column.symbol.name
        self.checks = any(map(checks_positions, writer.kernel.loops))
        self.all_checked = not self.checks
        if self.parallel:
            writer.line(f"#pragma omp parallel for num_threads({writer.threads}){self._bad_clause()}")
        writer.line(f"for (i64 {name}b = 0; {name}b < {extent}; {name}b += {width}) {{")
        writer.depth += 1
        self.lanes = str(width)
        if not isinstance(column.extent, int) or column.extent % width:
            self.lanes = "lanes"
            writer.line(f"const i64 lanes = {extent} - {name}b < {width} ? {extent} - {name}b : {width};")
        sections = writer.kernel.sections
        nests = [k for k, section in enumerate(sections) if section.axes]
        self._declare_locals(width, nests)
        for k, end in zip(nests, [*nests[1:], len(sections)], strict=True):
            self.enter(sections[k])
            self.accumulators, self.results = {}, {}
            self._write_nest(width)
            self._write_results(sections[k + 1 : end])
        writer.close(1)

    def _most_columns(self) -> int:
        """How wide a block may be: as wide as the accumulators stay in the first-level cache, because long parts of rows are read faster
        (sums of 8192 rows of 4096 take 8 ms, in blocks of 256 14 ms). What a second nest reads again should also stay in the caches.
        """
        nests = [section for section in self.writer.kernel.sections if section.axes]
        if len(nests) > 1:
            return _MAX_WIDTH
        beside = dict.fromkeys(POSITIONS, 8)  # bytes of what is kept beside an accumulator: positions, sums of blocks
        if not _are_few(nests[0], _RUN):
            beside["sum"] = 8
        reduced = [
            (loop.body[i.args[0]].dtype, i.attr) for loop in nests[0].members for i in loop.body if i.op == "reduce"
        ]
        size = sum(dtype.itemsize + beside.get(kind, 0) for dtype, kind in reduced)
        most = max(_MAX_WIDTH, _MAX_BYTES // size // 16 * 16)
        if not self.parallel:
            return most
        columns = self.writer.kernel.outer[-1].extent
        share = -(-columns // (16 * self.writer.threads)) * 16 if isinstance(columns, int) else _MAX_WIDTH
        return min(most, max(share, _MAX_WIDTH))  # a block for each thread

    def _declare_locals(self, width: int, nests: list[int]) -> None:
        """What one nest leaves for a later one lies in arrays, one element for each lane."""
        self.kept = self.later_reads & set(self.writer.kernel.locals) if len(nests) > 1 else set()
        for buffer in sorted(self.kept):
            c_type = MEMORY_TYPES[self.writer.buffers[buffer].dtype]
            self.writer.line(f"alignas(64) {c_type} {self.writer.param(buffer)}[{width}];")

    def _write_nest(self, width: int) -> None:
        writer, axes = self.writer, self.section.axes
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

    def _write_results(self, scalars: list[Section]) -> None:
        """Behind a nest: its results and what is computed from them, lane by lane."""
        writer = self.writer
        if not scalars and not self.accumulators:
            return
        values, stored = dict(writer.outer_values), dict(writer.outer_stored)
        self.checks_inside = self.checks
        self._open_lanes()
        self._finish()
        for later in scalars:
            _LanePrinter(self, later).write()
        writer.close(1)
        writer.outer_values, writer.outer_stored = values, stored  # names end with the loop

    def _vector_axis(self) -> Axis:
        return self.writer.kernel.outer[-1]

    def _element(self, buffer: str, index: IntLike) -> str:
        return "l" if buffer in self.kept else super()._element(buffer, index)

    def _store(self, instr: Instr, args: tuple[str, ...], *, outer: bool) -> None:
        super()._store(instr, args, outer=outer)
        if instr.attr.buffer in self.kept:
            self.writer.line(f"{self.writer.param(instr.attr.buffer)}[l] = {self._in_memory(args[0], instr.dtype)};")

    def _declare_columns(self, width: int) -> None:
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
                if acc.kind == "sum" and dtype.is_floating_point and not _are_few(self.section, _run_of(dtype)):
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
            run = min(_run_of(acc.dtype) for acc in totals)
            self.writer.line(f"for (i64 {name}b = 0; {name}b < {extent}; {name}b += {run}) {{")
            self.writer.depth += 1
            for acc in totals:
                self._fill(acc.name, "0")
            self.writer.line(f"const i64 {name}e = {name}b + {run} < {extent} ? {name}b + {run} : {extent};")
            first, end = f"{name}b", f"{name}e"
        rows = self._rows_per_pass(axis)
        if rows > 1:
            at = self.writer.fresh()
            self.writer.line(f"i64 {at} = {first};")
            self.writer.line(f"for (; {at} + {rows} <= {end}; {at} += {rows}) {{")
            self.writer.depth += 1
            self._open_lanes()
            for row in range(rows):
                self.writer.line(f"{{ const i64 {name} = {at} + {row};")
                self.writer.depth += 1
                self.inner_values.clear()  # of another row
                self._write_members()
                self.writer.close(1)
            self.writer.close(2)
            first = f"{at}"
        self.writer.line(f"for (i64 {name} = {first}; {name} < {end}; ++{name}) {{")
        self.writer.depth += 1
        self.inner_values.clear()
        self._check_before(self.writer.kernel.outer[-1])
        self._open_lanes()
        self._write_members()
        self.writer.close(2)

    def _rows_per_pass(self, axis: Axis) -> int:
        """As many as repeat the body with little text and few registers."""
        costs = [OPS[instr.op].cost for member in self.section.members for instr in member.body if instr.op in OPS]
        if not self.accumulators or self.checks or max(costs, default=0) >= Cost.DIVIDE:
            return 1
        columns = self.writer.kernel.outer[-1].extent
        choices = _ROWS_OF_SHORT if isinstance(columns, int) and columns < _MAX_WIDTH else _ROWS_OF_LONG
        rows = next((rows for most, rows in choices if len(costs) <= most), 1)
        return 1 if isinstance(axis.extent, int) and axis.extent < 2 * rows else rows

    def _write_members(self) -> None:
        self.inner_stored.clear()
        for m, loop in enumerate(self.section.members):
            self._instructions(m, loop, 0, split_at_reduce(loop) if loop.reduce_axes else len(loop.body), outer=False)

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
            if loop.reduce_axes:
                self._instructions(m, loop, split_at_reduce(loop), len(loop.body), outer=True)


class _LanePrinter(SectionPrinter):
    """Writes a section without axes in the loop over the lanes."""

    def __init__(self, columns: ColumnPrinter, section: Section) -> None:
        super().__init__(columns.writer, section, columns.later_reads, parallel=False)
        self.columns = columns

    def _element(self, buffer: str, index: IntLike) -> str:
        return "l" if buffer in self.columns.kept else super()._element(buffer, index)

    def _store(self, instr: Instr, args: tuple[str, ...], *, outer: bool) -> None:
        self.columns._store(instr, args, outer=outer)


def column_printer(writer: KernelWriter, later_reads: set[str], *, parallel: bool) -> ColumnPrinter:
    """The printer for all sections of the writer's kernel."""
    return ColumnPrinter(writer, writer.kernel.sections[0], later_reads, parallel=parallel)
