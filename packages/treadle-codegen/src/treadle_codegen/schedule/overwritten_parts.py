"""Loops need not compute what others write over before anybody reads it.

before   y = 0 in all of [4096, 4096];  y[1:-1, 1:-1] = x[2:, 1:-1] - x[:-2, 1:-1]
after    y = 0 in rows 0 and 4095;  y = 0 in columns 0 and 4095 of the rows between;  y[1:-1, 1:-1] = ...

Solvers begin an array with zeros or a copy and then write its interior: one of three walks over memory is saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from treadle_codegen.costs import Costs
from treadle_codegen.ir.loops import Axis, BufferKind, IntLike, Loop, Program, Step, Store
from treadle_codegen.ir.overlap import known_coefficients
from treadle_codegen.lower.indexing import axis_symbol, product
from treadle_codegen.schedule.access import loop_reads, rename_loop, step_reads, step_writes

Box = tuple[tuple[int, int], ...]
"""(first position, number of positions) along each axis of a loop."""


class _Strips(NamedTuple):
    """Boxes of equal sizes that lie `distance` positions apart along one axis: a single loop computes one box or two."""

    box: Box
    axis: int = 0
    distance: int = 0

    @property
    def points(self) -> int:
        return (2 if self.distance else 1) * product([extent for _, extent in self.box])  # type: ignore[return-value]


def leave_out_overwritten(program: Program, costs: Costs) -> None:
    """Cut out of the program's loops what other loops write over, where that saves memory traffic (`Costs.overwritten_bytes`)."""
    if not costs.overwritten_bytes:
        return
    touching = _touching(program.steps)
    steps: list[Step] = []
    for position, step in enumerate(program.steps):
        behind = _behind(program.steps, step, position, touching)
        if isinstance(step, Loop) and behind and why_not_cut(program, step) is None:
            steps += _cut(program, step, _holes(step, behind), costs)
        else:
            steps.append(step)
    program.steps = steps


def _touching(steps: Sequence[Step]) -> dict[str, list[int]]:
    """By buffer, the positions of the steps that read or write it."""
    found: dict[str, list[int]] = {}
    for position, step in enumerate(steps):
        for name in {*step_reads(step), *step_writes(step)}:
            found.setdefault(name, []).append(position)
    return found


def _behind(steps: Sequence[Step], step: Step, position: int, touching: Mapping[str, Sequence[int]]) -> list[Step]:
    """The steps behind `step` that touch the one buffer that it writes, if the first of them only writes."""
    written = step_writes(step)
    if len(written) != 1:
        return []
    (name,) = written
    found = [steps[k] for k in touching[name] if k > position]
    return found if found and name in step_writes(found[0]) else []


def why_not_cut(program: Program, loop: Loop) -> str | None:
    """Why the loop must compute all of its points."""
    written = [instr for instr in loop.body if "store" in instr.op]
    if loop.reduce_axes or any(instr.op in ("scan", "indirect_load") for instr in loop.body):
        return "its points depend on each other, or it checks positions that are data"
    if len(written) != 1 or not isinstance(written[0].attr, Store) or written[0].attr.mode is not None:
        return "it stores more than the first values of one buffer"
    buffer = program.buffers[written[0].attr.buffer]
    if buffer.kind not in (BufferKind.TEMP, BufferKind.OUTPUT) or buffer.opaque:
        return "the memory is not the graph's"
    if buffer.name in program.updates:
        return "it may be a copy of an input that is updated where it is, so that there is nothing to compute"
    return None if _row_major(loop, written[0].attr.index) is not None else "its points are not those of a dense tensor"


def _row_major(loop: Loop, index: IntLike) -> list[int] | None:
    """The distance in memory of neighbours along each axis of the loop, if it writes all of a dense tensor without gaps."""
    found = known_coefficients(index, loop.axes)
    if found is None or found[1] != 0:
        return None
    coefficients, expected = found[0], 1
    for coefficient, axis in sorted(zip(coefficients, loop.axes, strict=True), key=lambda pair: pair[0]):
        if not isinstance(axis.extent, int) or axis.extent < 1:
            return None
        if axis.extent > 1 and coefficient != expected:
            return None
        expected *= axis.extent
    return coefficients


def _holes(loop: Loop, behind: Sequence[Step]) -> Iterator[Box]:
    """The boxes of the loop's points that following loops write over before anything reads the buffer.

    behind: the steps that touch it, in order.
    """
    ((name, index),) = [(i.attr.buffer, i.attr.index) for i in loop.body if i.op == "store"]
    strides = _row_major(loop, index)
    assert strides is not None
    for step in behind:
        hole = _written_box(step, name, loop, strides) if isinstance(step, Loop) else None
        if hole is None:
            return
        yield hole


def _written_box(step: Loop, name: str, loop: Loop, strides: Sequence[int]) -> Box | None:
    """The box of the loop's points that `step` writes over without a look at the buffer."""
    stores: list[Any] = [i.attr for i in step.body if "store" in i.op]
    if any(read.buffer == name for read in loop_reads(step)) or step.reduce_axes:
        return None
    if len(stores) != 1 or not isinstance(stores[0], Store) or stores[0].mode != "overwrite":
        return None
    found = known_coefficients(stores[0].index, step.axes)
    if found is None or found[1] < 0:
        return None
    extents: dict[int, int] = {}
    for coefficient, axis in zip(found[0], step.axes, strict=True):
        if not isinstance(axis.extent, int):
            return None
        if axis.extent > 1:
            if coefficient in extents:
                return None
            extents[coefficient] = axis.extent
    box: dict[int, tuple[int, int]] = {}
    rest = found[1]
    for d in sorted(range(len(strides)), key=strides.__getitem__, reverse=True):
        whole = loop.axes[d].extent
        if whole == 1:
            box[d] = (0, 1)
            continue
        first, rest = divmod(rest, strides[d])
        box[d] = (first, extents.pop(strides[d], 1))
        if sum(box[d]) > whole:
            return None
    return None if extents or rest else tuple([box[d] for d in range(len(strides))])


def _cut(program: Program, loop: Loop, holes: Iterator[Box], costs: Costs) -> list[Loop]:
    """The loops that compute what is left of `loop` around the holes; the loop itself where that saves too little."""
    whole: Box = tuple([(0, axis.extent) for axis in loop.axes if isinstance(axis.extent, int)])
    boxes = [whole]
    for hole in holes:
        boxes = [part for box in boxes for part in _around(box, hole)]
    if boxes == [whole]:
        return [loop]
    strips = _paired(boxes)
    (name,) = step_writes(loop)
    points = product([extent for _, extent in whole]) - sum(strip.points for strip in strips)
    assert isinstance(points, int)
    if points * program.buffers[name].dtype.itemsize < costs.overwritten_bytes * max(1, len(strips) - 1):
        return [loop]
    return [_limited(loop, strip, k) for k, strip in enumerate(strips)]


def _around(box: Box, hole: Box) -> list[Box]:
    """What is left of a box around a hole, outer axes first, so that the largest parts are in one piece."""
    common = [
        (max(a, b), min(a + n, b + m) - max(a, b)) for (a, n), (b, m) in zip(box, hole, strict=True)
    ]  # fmt: skip
    if any(extent <= 0 for _, extent in common):
        return [box]
    parts: list[Box] = []
    for d, ((first, extent), (start, inside)) in enumerate(zip(box, common, strict=True)):
        before, behind = start - first, first + extent - (start + inside)
        outer, inner = tuple(common[:d]), box[d + 1 :]
        if before:
            parts.append((*outer, (first, before), *inner))
        if behind:
            parts.append((*outer, (start + inside, behind), *inner))
    return parts


def _paired(boxes: Sequence[Box]) -> list[_Strips]:
    """The boxes, two of equal sizes that differ in one position taken together."""
    left, found = list(boxes), list[_Strips]()
    while left:
        box = left.pop(0)
        strip = _Strips(box)
        for other in left:
            apart = [d for d, (a, b) in enumerate(zip(box, other, strict=True)) if a != b]
            if len(apart) == 1 and box[apart[0]][1] == other[apart[0]][1]:
                (d,) = apart
                strip = _Strips(box, d, other[d][0] - box[d][0])
                left.remove(other)
                break
        found.append(strip)
    return found


def _limited(loop: Loop, strip: _Strips, number: int) -> Loop:
    """The loop over the points of the strips only."""
    mapping: dict[Any, IntLike] = {}
    axes: list[Axis] = []
    for d, (axis, (first, extent)) in enumerate(zip(loop.axes, strip.box, strict=True)):
        at: IntLike = first
        if strip.distance and d == strip.axis:
            pair = Axis(axis_symbol(f"i{len(axes)}", 2), 2)
            axes.append(pair)
            at = at + pair.symbol * strip.distance
        if extent > 1:
            along = Axis(axis_symbol(f"i{len(axes)}", extent), extent)
            axes.append(along)
            at = at + along.symbol
        mapping[axis.symbol] = at
    made = rename_loop(loop, mapping, tuple(axes), ())
    return replace(made, name=f"{loop.name}_around{number}")
