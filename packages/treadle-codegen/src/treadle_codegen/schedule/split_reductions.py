"""Split reductions that would leave most workers idle: partial results first, then their reduction.

before   loop [] reduce [r0:1000000]                    one worker walks all of x
           %0 = load x[r0];  %1 = reduce sum %0;  store y[0] %1
after    loop [i0:256] reduce [r0:3907]                 256 workers, each walks a part; lanes behind the end count as 0
           %0 = masked_load x[3907*i0 + r0] if 3907*i0 + r0 < 1000000;  %1 = reduce sum %0;  store y_parts[i0] %1
         loop [] reduce [r0:256]
           %0 = load y_parts[r0];  %1 = reduce sum %0;  store y[0] %1

A position is that in the first of the parts that have the best value (`split_positions`).
"""

from __future__ import annotations

from dataclasses import replace

from treadle_codegen.costs import Costs
from treadle_codegen.ir.loops import Buffer, IntLike, Load, Loop, Program, Store
from treadle_codegen.ir.ops import POSITIONS
from treadle_codegen.lower.indexing import product
from treadle_codegen.schedule.partial_results import (
    IDENTITY,
    flat,
    lies_across,
    new_buffer,
    partial_loop,
    walk_over_parts,
)
from treadle_codegen.schedule.row_results import reducing
from treadle_codegen.schedule.split_positions import split_position

_UNKNOWN_PARTS = 64  # of a reduction of unknown length
_FEW_PARTS = 4  # of `split_work` elements take no longer than the second kernel that they would need


def split_reductions(program: Program, costs: Costs) -> None:
    """Split the program's reductions where that lets more workers take part. Adds buffers for the partial results."""
    if not costs.split_work:
        return
    steps = []
    for step in program.steps:
        parts = parts_of(step, costs) if isinstance(step, Loop) else 1
        if isinstance(step, Loop) and parts > 1:
            is_position = any(instr.op == "reduce" and instr.attr in POSITIONS for instr in step.body)
            steps += (split_position if is_position else _split)(program, step, parts)
        else:
            steps.append(step)
    program.steps = steps


def why_not_split(loop: Loop) -> str | None:
    """Why a loop's reduction cannot be made from partial results."""
    kinds = [instr.attr for instr in loop.body if instr.op == "reduce"]
    if len(kinds) != 1:
        return "there is no reduction, or more than one"
    if kinds[0] not in (*IDENTITY, "max", "min", *POSITIONS):
        return "parts of it cannot be put together: a matrix product"
    if kinds[0] in POSITIONS and not all(isinstance(a.extent, int) for a in loop.reduce_axes):
        return "positions in parts of unknown length"
    return None


def parts_of(loop: Loop, costs: Costs) -> int:
    """Into how many parts a loop's reduction should be split; 1: it should not be."""
    if why_not_split(loop) is not None:
        return 1
    points, length = product([a.extent for a in loop.axes]), product([a.extent for a in loop.reduce_axes])
    if not isinstance(points, int):
        return 1
    workers = max(1, points // 32) if lies_across(loop) else points  # neighbours share a worker
    if not isinstance(length, int):
        return _UNKNOWN_PARTS if workers * 4 <= costs.min_parallel else 1
    most = min(2 * costs.min_parallel, points * length // costs.split_work)
    if most < 2 * workers or points * length <= _FEW_PARTS * costs.split_work:
        return 1
    return min(-(-most // workers), max(1, length // 32))


def _split(program: Program, loop: Loop, parts: int) -> list[Loop]:
    at = next(k for k, instr in enumerate(loop.body) if instr.op == "reduce")
    first_axis = lies_across(loop)  # neighbours in memory then stay neighbours among the workers
    partial = partial_loop(loop, parts, first_axis=first_axis)
    shape = tuple([axis.extent for axis in partial.axes])
    reduction = partial.body[-1]
    buffer = new_buffer(program, loop, reduction.dtype, shape)
    index = flat([axis.symbol for axis in partial.axes], shape)
    stored = replace(reduction, op="store", args=(len(partial.body) - 1,), attr=Store(buffer.name, index))
    first = replace(partial, name=f"{loop.name}_parts", body=(*partial.body, stored))
    return [first, _final_loop(loop, at, buffer, shape, first_axis=first_axis)]


def _final_loop(loop: Loop, at: int, buffer: Buffer, shape: tuple[IntLike, ...], *, first_axis: bool) -> Loop:
    """The loop with its reduction over the partial results instead."""
    axis, index = walk_over_parts(loop, shape, first_axis=first_axis)
    return reducing(loop, at, Load(buffer.name, index), (axis,))
