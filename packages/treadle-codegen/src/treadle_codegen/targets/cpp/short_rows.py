"""Kernels over short rows, written out point by point, so that whole vectors of rows are computed at once.

    for o0 < n: v = 0; for j0 < 3: v += d[3*o0 + j0] * d[3*o0 + j0];   b1[o0] = pow(v, 1.5)        becomes

    #pragma omp simd
    for o0 < n: v = 0; v += d[3*o0] * d[3*o0]; v += d[3*o0 + 1] * ...; v += d[3*o0 + 2] * ...;   b1[o0] = pow(v, 1.5)

Distances of points, quaternions, the two classes of a softmax: a loop over a row has no vectors then, and g++ does not vectorise around it
where a function is called. Forces between 100 bodies in double precision, with `r2 ** 1.5`, took 490 us and take 75 (one thread, AVX-512).
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from treadle_codegen.ir.loops import Axis, Loop, scans
from treadle_codegen.ir.ops import POSITIONS
from treadle_codegen.ir.product import is_product
from treadle_codegen.schedule.access import loop_reads, loop_writes
from treadle_codegen.schedule.kernel import Kernel, Section
from treadle_codegen.schedule.positions import checks_positions
from treadle_codegen.targets.cpp.far_loads import steps_far
from treadle_codegen.targets.cpp.section import Accumulator, SectionPrinter

if TYPE_CHECKING:
    from treadle_codegen.targets.cpp.renderer import KernelWriter

_SHORT = 8  # points of a row
_FEWEST_ROWS = 16
_LONG_BODY = 256  # instructions of all points


def why_not_short_rows(kernel: Kernel) -> str | None:
    """Why the rows of a kernel are loops, or None."""
    if not kernel.outer:
        return "nothing stands around the rows"
    rows = kernel.outer[-1]
    if isinstance(rows.extent, int) and rows.extent < _FEWEST_ROWS:
        return "few rows"
    written_out = 0
    for section in kernel.sections:
        points = _points(section)
        if points is None or points > _SHORT:
            return "long rows"
        written_out += points * sum(len(member.body) for member in section.members)
    if written_out > _LONG_BODY:
        return "a long body"
    return next((why for loop in kernel.loops if (why := _why_in_turn(loop, rows)) is not None), None)


def _points(section: Section) -> int | None:
    extents = [axis.extent for axis in section.axes]
    return math.prod(extents) if all(isinstance(n, int) for n in extents) else None  # type: ignore[arg-type]


def _why_in_turn(loop: Loop, rows: Axis) -> str | None:
    """Why several rows of a loop are not computed at once, or None."""
    if scans(loop) or is_product(loop):
        return "a scan, or a matrix product"
    for instr in loop.body:
        if instr.op == "reduce" and instr.attr in POSITIONS:
            return "positions are found one by one"
        if instr.op == "indirect_store" or (instr.op == "store" and instr.attr.mode == "add"):
            return "rows may store to the same element"
    accesses = (*loop_reads(loop), *loop_writes(loop))
    if any(access.index is not None and steps_far(access.index, rows) for access in accesses):
        return "rows that lie far apart"
    return None


class ShortRowPrinter(SectionPrinter):
    """Writes one section of a kernel for which `why_not_short_rows` is None, inside of the loop that `open_rows` has opened."""

    def write(self) -> None:
        self.checks = any(map(checks_positions, self.section.members))
        self.all_checked = not self.checks
        self._declare()
        for point in itertools.product(*[range(axis.extent) for axis in self.section.axes]):  # type: ignore[arg-type]
            if not point:
                break
            names = ", ".join(f"{a.symbol.name} = {k}" for a, k in zip(self.section.axes, point, strict=True))
            self.writer.line(f"{{ const i64 {names};")
            self.writer.depth += 1
            self.inner_values.clear()
            self.inner_stored.clear()
            self._write_bodies()
            self.writer.close(1)
        if not self.section.axes:
            for m, loop in enumerate(self.section.members):
                self._instructions(m, loop, 0, len(loop.body), outer=True)
        self._finish()

    def _declare(self) -> None:
        """Sums of a few numbers need no sums of blocks."""
        self.last_block = False
        for m, loop in enumerate(self.section.members):
            for k, instr in enumerate(loop.body):
                if instr.op == "reduce":
                    acc = Accumulator(instr.attr, self.writer.fresh(), loop.body[instr.args[0]].dtype)
                    self._declare_accumulator(acc)
                    self.accumulators[(m, k)] = acc

    def _vector_axis(self) -> Axis:
        return self.writer.kernel.outer[-1]


def open_rows(writer: KernelWriter, *, parallel: bool) -> None:
    """Open the loop over the rows, the last of the kernel's outer axes; parallel: threads share it."""
    bad = " reduction(|:bad)" if any(map(checks_positions, writer.kernel.loops)) else ""
    writer.line(f"#pragma omp {f'parallel for simd num_threads({writer.threads})' if parallel else 'simd'}{bad}")
    writer.open_loop(writer.kernel.outer[-1])
