"""Loops that walk memory in two orders, in tiles: `y = x.t() + z` reads x down its columns and z along its rows.

    for j0 < n: for j1 < m: y[m*j0 + j1] = x[n*j1 + j0] + z[m*j0 + j1]        becomes

    for j0b < n by 64: for j1b < m by 64:
      t[j0][j1] = x[n*j1 + j0]                                            turned in registers (`turned.py`)
      for j0 in the 64: for j1 in the 64: y[m*j0 + j1] = t[j0][j1] + z[m*j0 + j1]

x [16384, 1024] of float32 took 24 ms, 36 ms in tiles without the array, 106 ms in rows; eager 32 to 45 ms (one thread of an EPYC, before
tiles were turned in registers). Tiles of 16, 32 and 64 take the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle_codegen.ir.loops import Axis, Expr, Instr, IntLike, Load, Loop
from treadle_codegen.schedule.access import loop_reads, loop_writes, step_along
from treadle_codegen.schedule.kernel import Kernel, Section
from treadle_codegen.targets.cpp.ops import MEMORY_TYPES, read_memory
from treadle_codegen.targets.cpp.section import SectionPrinter

if TYPE_CHECKING:
    from treadle_codegen.targets.cpp.renderer import KernelWriter

_LEAST = 32  # shorter axes are not worth it
_LINES = 128  # the lines that so many elements lie in stay in the first-level cache by themselves
_LINE = 16  # elements: what is read further apart than this shares no cache line


def why_not_tiles(kernel: Kernel, section: Section) -> str | None:
    """Why a section is not rendered in tiles, or None."""
    if kernel.outer or len(kernel.sections) != 1 or len(section.axes) < 2:
        return "outer loops, or nothing to exchange"
    if any(member.reduce_axes for member in section.members):
        return "the order of a reduction would change"
    if any(instr.op == "indirect_store" for member in section.members for instr in member.body):
        return "points that may store to the same element have an order"
    if _crossing(section) is None:
        return "everything is read along the innermost axis"
    return None


def _crossing(section: Section) -> int | None:
    """The position of the axis along which something is contiguous that lies apart along the innermost one."""
    inner = section.axes[-1]
    if not _is_long(inner, _LINES):
        return None
    for member in section.members:
        for access in (*loop_reads(member), *loop_writes(member)):
            for k, axis in enumerate(section.axes[:-1]):
                if (
                    _is_long(axis, _LEAST)
                    and step_along(access.index, axis) == 1
                    and _lies_apart(step_along(access.index, inner))
                ):
                    return k
    return None


def _is_long(axis: Axis, least: int) -> bool:
    return not isinstance(axis.extent, int) or axis.extent >= least


def _lies_apart(step: IntLike | None) -> bool:
    return isinstance(step, Expr) or (isinstance(step, int) and step > _LINE)


class TilePrinter(SectionPrinter):
    """Writes a section for which `why_not_tiles` is None. `turned`: loads from arrays, and the places there."""

    def __init__(self, writer: KernelWriter, section: Section, later_reads: set[str], *, parallel: bool) -> None:
        super().__init__(writer, section, later_reads, parallel=parallel)
        self.turned: dict[Load, str] = {}
        self.side = writer.tiling.tile

    def _open_outer(self) -> int:
        section, writer = self.section, self.writer
        crossing = _crossing(section)
        assert crossing is not None
        tall, wide = section.axes[crossing], section.axes[-1]
        others = [axis for k, axis in enumerate(section.axes[:-1]) if k != crossing]
        self._share()
        for axis in others:
            writer.open_loop(axis)
        for axis in (tall, wide):
            name, extent = axis.symbol.name, writer.index(axis.extent)
            writer.line(f"for (i64 {name}b = 0; {name}b < {extent}; {name}b += {self.side}) {{")
            writer.depth += 1
            writer.line(f"const i64 {name}e = {name}b + {self.side} < {extent} ? {name}b + {self.side} : {extent};")
        self._turn(tall, wide)
        self._open_within(tall)
        return len(others) + 3

    def _open_within(self, axis: Axis) -> None:
        name = axis.symbol.name
        self.writer.line(f"for (i64 {name} = {name}b; {name} < {name}e; ++{name}) {{")
        self.writer.depth += 1

    def _turn(self, tall: Axis, wide: Axis) -> None:
        """Copy what lies across the tile into arrays in the tile's own order: in memory, the lines of a tile often share a cache set."""
        writer = self.writer
        written = {a.buffer for member in self.section.members for a in loop_writes(member)}
        for member in self.section.members:
            for instr in member.body:
                if instr.op != "load" or instr.attr.buffer in written or instr.attr in self.turned:
                    continue
                if step_along(instr.attr.index, tall) != 1 or not _lies_apart(step_along(instr.attr.index, wide)):
                    continue
                name, step = writer.fresh(), step_along(instr.attr.index, wide)
                assert step is not None
                writer.line(f"alignas(64) {MEMORY_TYPES[instr.dtype]} {name}[{self.side}][{self.side}];")
                (i, k), place = (
                    (axis.symbol.name for axis in (tall, wide)),
                    self._place(instr.attr.buffer, instr.attr.index),
                )
                call = f"turn<{self.side}>(&{place}, {writer.index(step)}, {i}e - {i}, {k}e - {k}, &{name}[0][0]);"
                writer.line(f"{{ const i64 {i} = {i}b, {k} = {k}b; {call} }}")
                self.turned[instr.attr] = f"{name}[{i} - {i}b][{k} - {k}b]"

    def _text(self, loop: Loop, instr: Instr, args: tuple[str, ...], *, outer: bool) -> str:
        if instr.op == "load" and instr.attr in self.turned:
            return read_memory(self.turned[instr.attr], instr.dtype)
        return super()._text(loop, instr, args, outer=outer)

    def _bounds(self, axis: Axis, *, blocked: bool) -> tuple[str, str]:
        return super()._bounds(axis, blocked=True)
