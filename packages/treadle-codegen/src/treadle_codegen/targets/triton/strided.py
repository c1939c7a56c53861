"""Elements that neighbouring points read from neighbouring groups: every second one, and the ones between.

    max(x[2 i], x[2 i + 1])         a = tl.load(b0 + 2 * i)                  as many narrow loads as there are elements
                                    b = tl.load(b0 + 2 * i + 1)
    ->                              w = tl.load(b0 + tl.arange(0, 2 * XBLOCK))
                                    a, b = tl.split(tl.reshape(w, [XBLOCK, 2]))     16 bytes at once; the rest stays in registers

Pooling, interleaved pairs (rotary positions, complex numbers), patches. Only groups that are read whole, so that nothing else is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from treadle_codegen.ir.loops import Axis, IntLike, Load, Loop
from treadle_codegen.lower.indexing import linear
from treadle_codegen.schedule.access import split_index
from treadle_codegen.targets.triton.tiles import is_flat, points

if TYPE_CHECKING:
    from treadle_codegen.targets.triton.body_writer import BodyWriter

_STEPS = (2, 4)  # halving a block again and again takes it apart

Group = tuple[str, tuple[int, ...], int]  # buffer, distance along each axis, place of the first element


class StridedLoads:
    """The loads of a flat kernel that are taken together; `value` writes a group when the first of its loads is asked for."""

    def __init__(self, writer: BodyWriter, axes: tuple[Axis, ...], loops: Iterable[Loop]) -> None:
        self.writer, self.axes = writer, axes
        found: dict[Group, set[int]] = {}
        if is_flat(writer.kernel) and writer.rank == 1 and axes and all(axis.extent != 0 for axis in axes):
            for loop in loops:
                for instr in loop.body:
                    place = _place(instr.attr, axes) if instr.op == "load" else None
                    if place is not None:
                        found.setdefault(place[0], set()).add(place[1])
        self.groups = {group for group, members in found.items() if len(members) == group[1][-1]}
        self.values: dict[Group, list[str]] = {}
        self.wide: dict[int, tuple[str, dict[object, str]]] = {}

    def value(self, load: Load) -> str | None:
        """The variable with what a load reads, if it belongs to a group."""
        place = _place(load, self.axes) if self.groups else None
        if place is None or place[0] not in self.groups:
            return None
        group, member = place
        if group not in self.values:
            self.values[group] = self._written(group)
        return self.values[group][member]

    def _written(self, group: Group) -> list[str]:
        """Write the load of a group; the variables of its members."""
        writer, (buffer, steps, first) = self.writer, group
        variable, names = self._block(steps[-1])
        before, writer.names = writer.names, names
        rest = writer.index(linear([axis.symbol for axis in self.axes[:-1]], list(steps[:-1]), first))
        writer.names = before
        mask = "" if writer.dims["x"].mask is None else f", {variable}m"
        whole = writer.fresh()
        writer.line(f"{whole} = tl.load({writer.param(buffer)} + ({rest} + {variable}t){mask})")
        return self._halves(whole, steps[-1])

    def _halves(self, whole: str, members: int) -> list[str]:
        """Write how a block is taken apart: into its elements of even and of odd number, and those again."""
        writer = self.writer
        if members == 1:
            return [whole]
        even, odd = writer.fresh(), writer.fresh()
        half = "XBLOCK" if members == 2 else f"{members // 2} * XBLOCK"
        writer.line(f"{even}, {odd} = tl.split(tl.reshape({whole}, [{half}, 2]))")
        pairs = zip(self._halves(even, members // 2), self._halves(odd, members // 2), strict=True)
        return [name for pair in pairs for name in pair]

    def _block(self, step: int) -> tuple[str, dict[object, str]]:
        """Write the variables of a block that is `step` times as long: its prefix, and the texts of the axes but the last."""
        if step in self.wide:
            return self.wide[step]
        writer, last = self.writer, self.axes[-1]
        dim, variable = writer.dims["x"], f"x{step}"
        if dim.in_one_row:
            at = f"(x_at - x_row * {last.extent})"
            writer.line(f"{variable}t = {step} * {at} + tl.arange(0, {step} * XBLOCK)")
            self.wide[step] = variable, writer.names
            return self.wide[step]
        start = writer.starts["x"]
        writer.line(f"{variable} = {step} * ({start}) + tl.arange(0, {step} * XBLOCK)")
        if dim.mask is not None:
            writer.line(f"{variable}m = {variable} < {writer.index(step * points(self.axes))}")
        extent = writer.index(step * last.extent)
        writer.line(f"{variable}t = {variable} % ({extent})" if self.axes[:-1] else f"{variable}t = {variable}")
        before, writer.names = writer.names, dict(writer.names)
        if self.axes[:-1]:
            writer.line(f"{variable}_row = {variable} // ({extent})")
            writer.split_index(f"{variable}_row", self.axes[:-1])
        self.wide[step] = variable, writer.names
        writer.names = before
        return self.wide[step]


def _place(load: Load, axes: tuple[Axis, ...]) -> tuple[Group, int] | None:
    """The group that a load belongs to, and its number there; None for one that reads neighbours, or no multiples of a step."""
    split = split_index(load.index, [axis.symbol for axis in axes])
    if split is None:
        return None
    steps, offset = split
    if not isinstance(offset, int) or not all(isinstance(step, int) for step in steps) or steps[-1] not in _STEPS:
        return None
    numbers: tuple[IntLike, ...] = tuple(steps)
    return (load.buffer, numbers, offset - offset % steps[-1]), offset % steps[-1]  # type: ignore[return-value]
