"""Short last axes: the parts of complex numbers, coordinates.

    for j0 < n: for j1 < 2: b1[2*j0 + j1] = b0[2*j0 + j1] * b2[j0]        becomes

    for j0 < n: b1[2*j0] = b0[2*j0] * b2[j0];  b1[2*j0 + 1] = b0[2*j0 + 1] * b2[j0]

A loop of two to four points has no vectors; the one around it has: 32 us and 12 us for `rotary, complex` of benchmarks/kernels.py, 256 KB
(one thread, AVX-512).
"""

from __future__ import annotations

from treadle_codegen.ir.loops import Axis
from treadle_codegen.schedule.access import loop_reads
from treadle_codegen.schedule.kernel import Section
from treadle_codegen.targets.cpp.far_loads import steps_far
from treadle_codegen.targets.cpp.section import SectionPrinter, addresses_through_data

_SHORT = 4  # points
_LONG_BODY = 128  # instructions, of all those points


def why_not_written_out(section: Section) -> str | None:
    """Why the last axis of a section is a loop, or None."""
    if len(section.axes) < 2 or any(member.reduce_axes for member in section.members):
        return "one axis, or a reduction"
    row, last = section.axes[-2].extent, section.axes[-1].extent
    if not isinstance(last, int) or last > _SHORT or (isinstance(row, int) and row <= _SHORT):
        return "not one short axis"
    if last * sum(len(member.body) for member in section.members) > _LONG_BODY:
        return "a long body"
    reads = [read for member in section.members for read in loop_reads(member) if read.index is not None]
    if any(steps_far(read.index, section.axes[-2]) for read in reads):
        return "rows that lie far apart"
    stores = (instr.attr for member in section.members for instr in member.body if instr.op == "store")
    if addresses_through_data(section.members) or any(store.mode == "add" for store in stores):
        return "memory is addressed through data or added to"
    return None


class ShortAxisPrinter(SectionPrinter):
    """Writes a section for which `why_not_written_out` is None: the points along the last axis one after the other."""

    def write(self) -> None:
        writer = self.writer
        *around, row, last = self.section.axes
        assert isinstance(last.extent, int)
        if around:
            self._share()
        for axis in around:
            writer.open_loop(axis)
        shared = self.parallel and not around
        writer.line(f"#pragma omp {f'parallel for simd num_threads({writer.threads})' if shared else 'simd'}")
        writer.open_loop(row)
        for k in range(last.extent):
            writer.line(f"{{ const i64 {last.symbol.name} = {k};")
            writer.depth += 1
            self.inner_values.clear()
            self.inner_stored.clear()
            self._write_bodies()
            writer.close(1)
        writer.close(len(around) + 1)

    def _vector_axis(self) -> Axis:
        return self.section.axes[-2]
