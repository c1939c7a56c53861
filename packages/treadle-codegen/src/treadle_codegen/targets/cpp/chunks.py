"""Innermost loops of reductions in chunks, the last chunk under a mask; reductions in vectors of as many accumulators.

    for j0 < n: v1 += b0[j0 + n*o0]        becomes for float32, m being n rounded down to a multiple of 16,

    for c < m by 16: lanes v1 += b0[c ... c + 15];   if m < n: lanes v1 += (l < n - m ? b0[m + l] : 0);   sum of the lanes

The compiler's own loop finishes what is left over in steps of 8, 4 and 1, keeps one vector of accumulators and adds up its lanes one by
one. Of 200,000 elements with one thread (AVX-512), in chunks and without: layer norm of rows of 128 takes 33 and 54 us, `logsumexp` of
rows of 9 takes 523 and 1228, layer norm of bfloat16 in rows of 49 takes 117 and 331, maxima of int64 in rows of 17 take 32 and 134;
long rows gain 0 - 15 %.
"""

from __future__ import annotations

import torch

from treadle_codegen.ir.loops import Instr, IntLike, Loop
from treadle_codegen.ir.ops import OPS, Cost
from treadle_codegen.schedule.access import loop_reads, loop_writes, split_index, step_along
from treadle_codegen.schedule.kernel import Kernel, Section, linear_coefficients_of
from treadle_codegen.targets.cpp.ops import C_TYPES, MEMORY_TYPES, constant, half_where, read_memory, write_memory
from treadle_codegen.targets.cpp.section import BLOCK, IDENTITY, Accumulator, SectionPrinter, worst
from treadle_codegen.targets.renderer import split_at_reduce
from treadle_shapes.expr import Expr

_CHUNK_BYTES = 64  # of the narrowest elements; two or more vectors on processors with shorter ones
_WIDTHS = frozenset((2, 4, 8))
MOST_LANES = _CHUNK_BYTES // min(_WIDTHS)
_LONG_ROW = 768
_COMBINE = {
    "sum": "LanesSum",
    "prod": "LanesProduct",
    "max": "LanesMax",
    "min": "LanesMin",
    "any": "LanesOr",
    "all": "LanesAnd",
}


def why_not_chunks(kernel: Kernel, section: Section, *, parallel: bool) -> str | None:
    """Why the compiler's own vector loop is as good or better, or None."""
    if not section.axes or (parallel and len(section.axes) == 1):
        return "no loop, or one that threads share"
    row = section.axes[-1]
    extent = row.extent
    widths = _widths(section)
    if not widths or not widths <= _WIDTHS:
        return "elements of one byte, of which a chunk would take four vectors once they are converted"
    if isinstance(extent, int) and 2 * extent < _lanes(section):
        return "most of a chunk would be masked"
    if len(section.axes) > 1:
        return "rows of a larger loop nest"
    if isinstance(extent, int) and extent > _LONG_ROW and any(map(_is_hard, kernel.loops)):
        return (
            "a long row of expensive elements: the compiler computes several vectors at once, and little is left over"
        )
    if not any(member.reduce_axes for member in section.members):
        return "elements alone: nothing is added up, and what is left over costs less than a chunk under a mask"
    reads = [a.index for member in section.members for a in loop_reads(member)]
    steps = {step_along(index, row) for index in reads} - {0}
    if steps and None not in steps and 1 not in steps:
        return "elements that lie apart are gathered either way"
    for member in section.members:
        for instr in member.body[: split_at_reduce(member) or None]:
            if instr.op in ("indirect_load", "indirect_store") or (instr.op == "store" and instr.attr.mode == "add"):
                return "memory is addressed through data or added to"
            if instr.op == "reduce" and instr.attr not in _COMBINE:
                return "positions are reduced"
    return None


def _widths(section: Section) -> set[int]:
    """Bytes of the elements that a section loads, computes and stores. Bools between them take the width of what they are computed from."""
    widths = set()
    for member in section.members:
        for instr in member.body[: split_at_reduce(member) or None]:
            in_memory = instr.op in ("load", "masked_load", "store")
            if instr.op != "const" and (in_memory or instr.dtype is not torch.bool):
                widths.add(instr.dtype.itemsize)
    return widths


def _lanes(section: Section) -> int:
    """Elements of a chunk of a section for which `why_not_chunks` is None."""
    return _CHUNK_BYTES // min(_widths(section))


def _leaves_over(extent: IntLike, lanes: int) -> bool:
    return not isinstance(extent, int) or extent % lanes != 0


def _is_hard(loop: Loop) -> bool:
    return any(OPS[instr.op].cost >= Cost.TRANSCENDENTAL for instr in loop.body[: split_at_reduce(loop) or None])


def rows_with_tails(kernel: Kernel, *, parallel: bool) -> dict[str, int]:
    """Rows that every section walks from end to end in chunks, with the lanes of these: what is left over has a place of its own.

    Stored and loaded in full vectors there; a load under a mask would wait for a store under a mask to reach the cache.
    """
    outer = [axis.symbol for axis in kernel.outer]
    found: dict[str, int | None] = {name: None for name, local in kernel.locals.items() if local.is_row}
    for section in kernel.sections if found else ():
        over = parallel and not kernel.outer and not any(member.reduce_axes for member in section.members)
        chunked = len(section.axes) == 1 and why_not_chunks(kernel, section, parallel=over) is None
        lanes = _lanes(section) if chunked else 1
        for member in section.members:
            for access in (*loop_reads(member), *loop_writes(member)):
                if access.buffer not in found:
                    continue
                local = kernel.locals[access.buffer]
                split = None if access.index is None else split_index(access.index, outer)
                walks = chunked and split is not None and split[1] - local.start == section.axes[0].symbol
                walks = walks and section.axes[0].extent == local.length and _leaves_over(local.length, lanes)
                if walks and found[access.buffer] in (None, lanes):
                    found[access.buffer] = lanes
                else:
                    del found[access.buffer]
    return {name: lanes for name, lanes in found.items() if lanes is not None}


class ChunkPrinter(SectionPrinter):
    """Writes a section for which `why_not_chunks` is None."""

    def write(self) -> None:
        writer, axis = self.writer, self.section.axes[-1]
        extent = writer.index(axis.extent)
        self.lanes = _lanes(self.section)
        self._declare_lanes()
        at = writer.fresh()
        if not _leaves_over(axis.extent, self.lanes):
            self._write_whole(at, extent)
            self._finish()
            return
        whole, left = writer.fresh(), writer.fresh()
        writer.line(f"const i64 {whole} = ({extent}) & ~{self.lanes - 1}LL;")
        writer.line(f"i32 {left} = (i32)(({extent}) - {whole});")
        writer.line(f'__asm__("" : "+r"({left}));  // a known number of lanes would be unrolled into scalars')
        self._write_whole(at, whole)
        writer.line(f"if ({left} > 0) {{")
        writer.depth += 1
        self._write_chunk(whole, left)
        writer.close(1)
        self._finish()

    def _declare_lanes(self) -> None:
        extent = self.section.axes[-1].extent
        for m, loop in enumerate(self.section.members):
            for k, instr in enumerate(loop.body):
                if instr.op != "reduce":
                    continue
                acc = Accumulator(instr.attr, self.writer.fresh(), loop.body[instr.args[0]].dtype)
                is_long = not (isinstance(extent, int) and extent <= BLOCK)
                if acc.kind == "sum" and acc.dtype.is_floating_point and is_long:
                    acc.total = acc.name + "t"
                    self.writer.line(f"double {acc.total} = 0;")
                self.writer.line(f"{self._type(acc)} {acc.name}({self._identity(acc)});")
                self.accumulators[(m, k)] = acc

    def _type(self, acc: Accumulator) -> str:
        """The type of as many accumulators as there are lanes."""
        is_nan_once_one_is = acc.kind in ("max", "min") and acc.dtype.is_floating_point
        return f"{'LanesOrNan' if is_nan_once_one_is else 'Lanes'}<{_COMBINE[acc.kind]}, {acc.c_type}, {self.lanes}>"

    @staticmethod
    def _identity(acc: Accumulator) -> str:
        return worst(acc) if acc.kind in ("max", "min") else f"({acc.c_type}){constant(IDENTITY[acc.kind], acc.dtype)}"

    def _write_whole(self, at: str, whole: str) -> None:
        """The chunks that are full; long sums go to a double every so often."""
        writer = self.writer
        totals = [acc for acc in self.accumulators.values() if acc.total is not None]
        writer.line(f"i64 {at} = 0;")
        end = whole
        if totals:
            end = writer.fresh()
            writer.line("for (;;) {")
            writer.depth += 1
            writer.line(f"const i64 {end} = {at} + {BLOCK} < {whole} ? {at} + {BLOCK} : {whole};")
        writer.line(f"for (; {at} < {end}; {at} += {self.lanes}) {{")
        writer.depth += 1
        self._write_chunk(at, None)
        writer.close(1)
        if totals:
            writer.line(f"if ({at} >= {whole}) break;")
            for acc in totals:
                writer.line(f"{acc.total} += {acc.name}.fold(); {acc.name} = {self._type(acc)}(0);")
            writer.close(1)

    def _write_chunk(self, start: str, left: str | None) -> None:
        """A chunk from `start` on, all of them or the first `left`."""
        line, name = self.writer.line, self.section.axes[-1].symbol.name
        self.masked = False
        self.inner_values.clear()  # of another chunk
        self.inner_stored.clear()
        direct = {} if left is not None else self._direct_loads()
        arrays = [acc for key, acc in self.accumulators.items() if key not in direct]
        for acc in arrays:
            line(f"alignas(64) {acc.c_type} {acc.name}c[{self.lanes}];")
        self.copies = []
        before = len(self.writer.lines)
        line("#pragma omp simd")
        line(f"for (i32 l = 0; l < {self.lanes}; ++l) {{")
        self.writer.depth += 1
        line(f"const i64 {name} = {start} + l;")
        tails = {} if left is None else self._tails()
        if left is not None:
            line(f"const bool on = l < {left};")
            self._load_tails(tails)
        self.direct, self.masked = direct, left is not None
        for m, loop in enumerate(self.section.members):
            self._instructions(m, loop, 0, split_at_reduce(loop) if loop.reduce_axes else len(loop.body), outer=False)
        self.writer.close(1)
        indent = "  " * self.writer.depth
        self.writer.lines[before:before] = [
            f"{indent}alignas(64) {t} {array}[{self.lanes}];" for array, t, _ in self.copies
        ]
        for array, _, place in self.copies:
            line(f"{{ const i64 {name} = {start}; __builtin_memcpy(&{place}, {array}, {left} * sizeof *{array}); }}")
        for key, acc in self.accumulators.items():
            if key in direct:
                line(f"{{ const i64 {name} = {start}; {acc.name}.take(&{direct[key]}); }}")
            else:
                line(f"{acc.name}.take({acc.name}c);")

    def _tails(self) -> dict[str, torch.dtype]:
        """The rows with tails that this section touches, with their dtypes."""
        accesses = [a for m in self.section.members for a in (*loop_reads(m), *loop_writes(m))]
        return {a.buffer: self.writer.buffers[a.buffer].dtype for a in accesses if a.buffer in self.writer.tails}

    def _load_tails(self, tails: dict[str, torch.dtype]) -> None:
        line = self.writer.line
        for buffer, dtype in tails.items():
            name = self.writer.param(buffer)
            if buffer in self.written:
                continue
            value = self.writer.fresh()
            line(f"const {C_TYPES[dtype]} {value} = {read_memory(f'{name}t[l]', dtype)};")
            for member in self.section.members:
                for access in loop_reads(member):
                    if access.buffer == buffer and access.index is not None:
                        self.inner_stored[(buffer, access.index)] = value

    def _store(self, instr: Instr, args: tuple[str, ...], *, outer: bool) -> None:
        if not self.masked or outer:
            super()._store(instr, args, outer=outer)
            return
        buffer, index = instr.attr.buffer, instr.attr.index
        self.inner_stored[(buffer, index)] = args[0]
        value, local = write_memory(args[0], instr.dtype), self.writer.kernel.locals.get(buffer)
        if buffer in self.writer.tails:
            self.writer.line(f"{self.writer.param(buffer)}t[l] = {value};")
        elif local is None and self._steps_by_one(index):
            # A store under a mask counts as one of all lanes to loads of the next row at the same place of another page.
            array = self.writer.fresh()
            self.copies.append((array, MEMORY_TYPES[instr.dtype], self._place(buffer, index)))
            self.writer.line(f"{array}[l] = {value};")
        elif local is None or (local.is_row and buffer in self.later_reads):
            if instr.dtype is torch.float16:  # as in `half_where`
                self.writer.line(f"const u16 {(stored := self.writer.fresh())} = {value};")
                value = stored
            self.writer.line(f"if (on) {self._place(buffer, index)} = {value};")

    def _steps_by_one(self, index: IntLike) -> bool:
        last = self.section.axes[-1].symbol
        steps = linear_coefficients_of(index, last, last) if isinstance(index, Expr) else None
        return steps is not None and steps[0] == 1

    def _text(self, loop: Loop, instr: Instr, args: tuple[str, ...], *, outer: bool) -> str:
        if self.masked and instr.op == "load":
            place = self._place_where("on", instr.attr, instr.dtype)
            is_half = instr.dtype is torch.float16
            return half_where("on", place, 0.0) if is_half else f"on ? ({read_memory(place, instr.dtype)}) : 0"
        text = super()._text(loop, instr, args, outer=outer)
        masked = self.masked and instr.op == "masked_load" and instr.dtype is not torch.float16
        return f"on ? ({text}) : 0" if masked else text  # what is computed from it stays in range

    def _both(self, condition: str) -> str:
        return f"on && ({condition})" if self.masked and condition != "on" else condition

    def _direct_loads(self) -> dict[tuple[int, int], str]:
        """Reduced values that are neighbours in memory as they are; through an array they would be copied by memcpy's halves."""
        found = {}
        for m, k in self.accumulators:
            loop = self.section.members[m]
            place = self._place_of_load(loop, loop.body[k].args[0])
            if place is not None:
                found[(m, k)] = place
        return found

    def _place_of_load(self, loop: Loop, value: int) -> str | None:
        instr = loop.body[value]
        if instr.op != "load" or MEMORY_TYPES[instr.dtype] != C_TYPES[instr.dtype]:
            return None
        buffer, index = instr.attr.buffer, instr.attr.index
        return self._place(buffer, index) if buffer not in self.written and self._steps_by_one(index) else None

    @property
    def written(self) -> set[str]:
        """Buffers that this section writes: their values may still be in registers only."""
        return {instr.attr.buffer for member in self.section.members for instr in member.body if instr.op == "store"}

    def _accumulate(self, acc: Accumulator, value: str) -> None:
        if not any(self.accumulators[key] is acc for key in self.direct):
            chosen = f"on ? {value} : {self._identity(acc)}" if self.masked else value
            self.writer.line(f"{acc.name}c[l] = {chosen};")

    def _finish(self) -> None:
        writer, self.masked = self.writer, False
        extent = writer.index(self.section.axes[-1].extent)
        for (m, k), acc in self.accumulators.items():
            name, folded = writer.fresh(), f"{acc.name}.fold()"
            if acc.total is not None:
                folded = f"{extent} > {BLOCK} ? ({acc.c_type})({acc.total} + {folded}) : {folded}"
            writer.line(f"const {C_TYPES[acc.dtype]} {name} = {folded};")
            self.results[(m, k)] = name
        for m, loop in enumerate(self.section.members):
            if loop.reduce_axes:
                self._instructions(m, loop, split_at_reduce(loop), len(loop.body), outer=True)
