"""Short last axes: the parts of complex numbers, coordinates, small matrices.

    for j0 < n: for j1 < 2: b1[2*j0 + j1] = b0[2*j0 + j1] * b2[j0]        becomes

    for j0 < n: b1[2*j0] = b0[2*j0] * b2[j0];  b1[2*j0 + 1] = b0[2*j0 + 1] * b2[j0]

A loop of two to four points has no vectors; the one around it has: 32 us and 12 us for `rotary, complex` of benchmarks/kernels.py, 256 KB
(one thread, AVX-512). With more points (expensive functions of five to fifteen fill their vectors badly) or a long body the loops change
places instead, for some rows at a time, which stay in the first cache:

    for j0b < n in steps of 128: for j1 < 5: for j0b <= j0 < j0b + 128: b1[5*j0 + j1] = sin(b0[5*j0 + j1] * b2[j0])

Sines and cosines of coordinates in several octaves, `torch.cat([f(x * w[:, None] * 2**k) for k in range(4) for f in (sin, cos)], -1)`, with
16,000 points in five dimensions: 8.2 ms and 1.05 ms (one thread, AVX-512).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from treadle_codegen.ir.loops import Axis
from treadle_codegen.ir.ops import OPS, Cost
from treadle_codegen.schedule.access import loop_reads
from treadle_codegen.schedule.kernel import Section
from treadle_codegen.targets.cpp.dependence import addresses_through_data
from treadle_codegen.targets.cpp.far_loads import steps_far
from treadle_codegen.targets.cpp.ops import calls_c_library
from treadle_codegen.targets.cpp.section import SectionPrinter

_SHORT = 4  # points; more are not written out, since g++ finds no vectors among stores to five neighbours or more
_POINTS = 16  # fewer than these may be computed in loops around the one over the rows
_LANES = 8  # multiples of these fill vectors
_LONG_BODY = 128  # instructions, of all points
_ROWS = 128  # that are computed before the next point


def why_not_across_rows(section: Section) -> str | None:
    """Why the last axis of a section is the innermost loop, or None."""
    if any(member.reduce_axes for member in section.members):
        return "a reduction"
    count = _count_short(section)
    if not count:
        return "no short axes"
    reads = [read for member in section.members for read in loop_reads(member) if read.index is not None]
    if any(steps_far(read.index, section.axes[-count - 1]) for read in reads):
        return "rows that lie far apart"
    stores = (instr.attr for member in section.members for instr in member.body if instr.op == "store")
    if addresses_through_data(section.members) or any(store.mode == "add" for store in stores):
        return "memory is addressed through data or added to"
    return None


def _count_short(section: Section) -> int:
    """How many of the last axes, at most, are short enough that the loop over the axis before them becomes vectors."""
    counts = range(len(section.axes) - 1, 0, -1)
    return next((count for count in counts if _why_not_short(section, count) is None), 0)


def _why_not_short(section: Section, count: int) -> str | None:
    row, *short = [axis.extent for axis in section.axes[-count - 1 :]]
    if isinstance(row, int) and row <= _SHORT:
        return "few rows"
    points = math.prod([n if isinstance(n, int) else _POINTS for n in short])
    if _is_written_out(section, points):
        return None
    if points >= _POINTS:
        return "many points"
    if isinstance(short[-1], int) and short[-1] % _LANES == 0:
        return "full vectors"
    return None if _is_expensive(section, points) else "cheap elements"


def _is_written_out(section: Section, points: int) -> bool:
    """Whether so many points stand one after the other in the loop over the rows."""
    return points <= _SHORT and points * sum(len(member.body) for member in section.members) <= _LONG_BODY


def _is_expensive(section: Section, points: int) -> bool:
    """Whether functions make up for addressing single elements, which costs as much as one exponential of half a vector."""
    instructions = [instr for member in section.members for instr in member.body if instr.op in OPS]
    hard = [instr for instr in instructions if OPS[instr.op].cost >= Cost.TRANSCENDENTAL]
    if points < _LANES or len(hard) > 1:
        return bool(hard)
    return any(calls_c_library(instr.op, instr.dtype) for instr in hard)


class ShortAxisPrinter(SectionPrinter):
    """Writes a section for which `why_not_across_rows` is None: whole vectors of rows for each point along the short axes."""

    def write(self) -> None:
        self.count = _count_short(self.section)
        *around, row = self.section.axes[: -self.count]
        if around:
            self._share()
        for axis in around:
            self.writer.open_loop(axis)
        shared = self.parallel and not around
        points = [range(axis.extent) for axis in self.section.axes[-self.count :]]  # type: ignore[arg-type]
        if _is_written_out(self.section, math.prod(map(len, points))):
            self._write_out(row, list(itertools.product(*points)), shared=shared)
        else:
            self._write_loops(row, shared=shared)
        self.writer.close(len(around))

    def _write_out(self, row: Axis, points: Sequence[tuple[int, ...]], *, shared: bool) -> None:
        writer, axes = self.writer, self.section.axes[-self.count :]
        writer.line(f"#pragma omp {f'parallel for simd num_threads({writer.threads})' if shared else 'simd'}")
        writer.open_loop(row)
        for point in points:
            names = ", ".join(f"{axis.symbol.name} = {k}" for axis, k in zip(axes, point, strict=True))
            writer.line(f"{{ const i64 {names};")
            writer.depth += 1
            self.inner_values.clear()
            self.inner_stored.clear()
            self._write_bodies()
            writer.close(1)
        writer.close(1)

    def _write_loops(self, row: Axis, *, shared: bool) -> None:
        writer, name, extent = self.writer, row.symbol.name, self.writer.index(row.extent)
        if shared:
            writer.line(f"#pragma omp parallel for num_threads({writer.threads})")
        writer.line(f"for (i64 {name}b = 0; {name}b < {extent}; {name}b += {_ROWS}) {{")
        writer.depth += 1
        writer.line(f"const i64 {name}e = {name}b + {_ROWS} < {extent} ? {name}b + {_ROWS} : {extent};")
        for axis in self.section.axes[-self.count :]:
            writer.open_loop(axis)
        writer.line("NO_VECTORS_AROUND;")
        writer.line("#pragma omp simd")
        writer.line(f"for (i64 {name} = {name}b; {name} < {name}e; ++{name}) {{")
        writer.depth += 1
        self._write_bodies()
        writer.close(self.count + 2)

    def _vector_axis(self) -> Axis:
        return self.section.axes[-self.count - 1]
