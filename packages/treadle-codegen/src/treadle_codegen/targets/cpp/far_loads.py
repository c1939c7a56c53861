"""Loads that step far along the loop that becomes vectors, of several elements each: x[:, 0] + x[:, 1] of a wide matrix.

g++ takes loads of one pointer that step alike for parts of one group, as wide as the step, and looks for permutations of all its elements:
two loads with a step of 4,096 elements take 6 s to compile, eight of them 55 s, with a step of 1,024 4 s (12.2, -O3). Through pointers of
which it does not know that they are the same, each load is on its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from treadle_codegen.ir.loops import Axis, IntLike, Loop
from treadle_codegen.schedule.access import loop_reads, step_along

_FAR = 32  # elements; a group of 16 takes no longer than single loads


def far_loads(loops: Sequence[Loop], axis: Axis, local: Collection[str]) -> list[tuple[str, IntLike]]:
    """The loads (buffer, index) that want a pointer of their own where `axis` is the innermost; `local`: buffers without memory."""
    found = dict.fromkeys(
        (read.buffer, read.index)
        for loop in loops
        for read in loop_reads(loop)
        if read.index is not None and read.buffer not in local and steps_far(read.index, axis)
    )
    times = Counter(buffer for buffer, _ in found)
    return [(buffer, index) for buffer, index in found if times[buffer] > 1]


def steps_far(index: IntLike, axis: Axis) -> bool:
    """Whether an index is far from that of the next point of an axis; a symbolic step may be a number once kernels are specialised."""
    step = step_along(index, axis)
    return step is not None and (abs(step) >= _FAR if isinstance(step, int) else True)
