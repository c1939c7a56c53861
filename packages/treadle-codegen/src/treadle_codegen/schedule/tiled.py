"""Loops that stand alone to walk memory in tiles: those that read across the axis that they write along.

    scale[n, c], shift[n, c]: small;   y[n, c, p] = x[n, p, c] * scale[n, c] + shift[n, c]

In the kernel of `scale` the loop would have n and c outside, and read x with a step of c. On its own it takes tiles of c and p.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle_codegen.ir.loops import Axis, IntLike, Loop
from treadle_codegen.lower.indexing import product
from treadle_codegen.schedule.access import loop_reads, step_along
from treadle_codegen.schedule.kernel import Kernel

_LEAST = 32  # of an axis that tiles have
_FAR = 16  # elements
_SMALL = 16  # what has so many times fewer points is small


def why_not_with_small(kernel: Kernel, loop: Loop, least: int) -> str | None:
    """Why a loop over at least `least` points does not join a kernel of small loops that computes what it needs, or None."""
    if not least or loop.reduce_axes or len(loop.axes) < 2:
        return None
    points = product([axis.extent for axis in loop.axes])
    if not isinstance(points, int) or points < least or not _reads_across(loop):
        return None
    for member in kernel.loops:
        own = product([axis.extent for axis in (*member.axes, *member.reduce_axes)])
        if not isinstance(own, int) or own * _SMALL > points:
            return None
    return "it reads across the axis that it writes along, in tiles"


def _reads_across(loop: Loop) -> bool:
    return any(_lies_across(read.index, loop.axes) for read in loop_reads(loop))


def _lies_across(index: IntLike | None, axes: Sequence[Axis]) -> bool:
    """Whether neighbours in memory are apart along the last axes, and next to each other along long ones before these."""
    behind = along = 1
    for axis in reversed(axes):
        if not isinstance(axis.extent, int):
            return False
        step = 0 if axis.extent == 1 else step_along(index, axis)
        if axis.extent > 1 and step == along:
            along *= axis.extent
        elif along > 1:
            break
        elif axis.extent > 1:
            if not isinstance(step, int) or step <= _FAR:
                return False
            behind *= axis.extent
    return behind >= _LEAST and along >= _LEAST


__all__ = ["why_not_with_small"]
