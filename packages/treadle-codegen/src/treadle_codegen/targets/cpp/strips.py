"""Positions of maxima and minima along rows, in strips: values are computed on whole vectors, and looked through where one is better.

    for j0 < n: if (v > best) best = v, at = j0        becomes

    for s < n by 256: for the j0 of the strip: strip[j0 - s] = v, most = max(most, v)
                      if (most > best): best = most, at = s + the first k with strip[k] == most

g++ does not vectorise the first loop, nor what is computed in it. The most of a strip is seldom the best so far: of n values in any order,
ln(n / 256) times after the first strip.
"""

from __future__ import annotations

from treadle_codegen.ir.loops import Axis
from treadle_codegen.ir.ops import POSITIONS
from treadle_codegen.schedule.kernel import Section
from treadle_codegen.targets.cpp.dependence import why_in_order
from treadle_codegen.targets.cpp.section import Accumulator, SectionPrinter

_STRIP = 256  # values; they stay in the first-level cache
_SHORTEST = 24  # in shorter rows every value is one of the few that vectors do not save


def why_not_strips(section: Section) -> str | None:
    """Why no strips are taken, or None."""
    bodies = [instr for member in section.members for instr in member.body]
    if not section.axes or not any(instr.op == "reduce" and instr.attr in POSITIONS for instr in bodies):
        return "no positions are reduced"
    extent = section.axes[-1].extent
    if isinstance(extent, int) and extent < _SHORTEST:
        return "too short"
    return why_in_order(section, section.axes[-1])


class StripPrinter(SectionPrinter):
    """Writes a section for which `why_not_strips` is None."""

    def _write_innermost(self, axis: Axis, first: str, end: str) -> None:
        writer, name = self.writer, axis.symbol.name
        self.positions = {acc.name: acc for acc in self.accumulators.values() if acc.kind in POSITIONS}
        self.start = start = writer.fresh()
        stop, width = writer.fresh(), _STRIP
        if isinstance(axis.extent, int):
            width = min(_STRIP, axis.extent)
        writer.line(f"for (i64 {start} = {first}; {start} < {end}; {start} += {_STRIP}) {{")
        writer.depth += 1
        writer.line(f"const i64 {stop} = {start} + {_STRIP} < {end} ? {start} + {_STRIP} : {end};")
        for acc in self.positions.values():
            writer.line(f"alignas(64) {acc.c_type} {acc.name}s[{width}];")
            self._declare_accumulator(self._most(acc))
        others = [acc for acc in self.accumulators.values() if acc.kind not in POSITIONS]
        writer.line(f"#pragma omp simd{self._simd_clauses([*others, *map(self._most, self.positions.values())])}")
        writer.line(f"for (i64 {name} = {start}; {name} < {stop}; ++{name}) {{")
        writer.depth += 1
        self._write_bodies()
        writer.close(1)
        for acc in self.positions.values():
            self._look_through(acc, axis, stop)
        writer.close(1)

    @staticmethod
    def _most(acc: Accumulator) -> Accumulator:
        """The largest or smallest value of a strip."""
        return Accumulator(POSITIONS[acc.kind], f"{acc.name}m", acc.dtype)

    def _accumulate(self, acc: Accumulator, value: str) -> None:
        if acc.kind in POSITIONS:
            self.writer.line(f"{acc.name}s[{self.section.axes[-1].symbol.name} - {self.start}] = {value};")
            acc = self._most(acc)
        super()._accumulate(acc, value)

    def _look_through(self, acc: Accumulator, axis: Axis, stop: str) -> None:
        """Take the strip's best value where it is better than what came before, and the first place where it stands. NaN is best of all."""
        name = acc.name
        if acc.dtype.is_floating_point:
            self._take(acc, f"{name}mn && {name} == {name}", f"{name}s[k] != {name}s[k]", axis, stop)
        self._take(acc, f"{name}m {'>' if acc.kind == 'argmax' else '<'} {name}", f"{name}s[k] == {name}m", axis, stop)

    def _take(self, acc: Accumulator, condition: str, matches: str, axis: Axis, stop: str) -> None:
        """Where the condition holds, take the first element of the strip that matches."""
        writer, at = self.writer, "i64" if acc.dtype.itemsize == 8 else "i32"  # as wide as the elements
        writer.line(f"if ({condition}) {{")
        writer.depth += 1
        writer.line(f"{at} first = {_STRIP};")
        writer.line("#pragma omp simd reduction(min:first)")
        count = f"({at})({stop} - {self.start})"
        writer.line(f"for ({at} k = 0; k < {count}; ++k) first = {matches} && k < first ? k : first;")
        writer.line(f"const i64 {axis.symbol.name} = {self.start} + first;")
        writer.line(f"{acc.name} = {acc.name}s[first]; {acc.name}p = {self._position()};")
        writer.close(1)
