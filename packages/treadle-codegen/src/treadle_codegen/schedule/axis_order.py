"""Loops that take their axes in another order to share a kernel with a reduction over a middle axis.

    mean[n, p] = mean over c of x[n, c, p]          outer n, p; c is walked inside
    y[n, c, p] = x[n, c, p] - mean[n, p]            n, c, p  ->  n, p, c: the row along c is there already

Where a kernel's points are taken by blocks in any order, such a loop reads and writes the same blocks as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from treadle_codegen.ir.loops import Axis, Loop, scans, symbols_of
from treadle_codegen.schedule.access import Access, loop_reads, loop_writes
from treadle_codegen.schedule.kernel import Kernel


def around_reductions(kernel: Kernel, loop: Loop, most: int) -> Loop:
    """The loop with the axes last along which it uses results of the kernel's reductions again and again, if there are such results and
    at most `most` points along these axes; else the loop as it is."""
    if loop.reduce_axes or scans(loop):
        return loop
    inner = _repeated(kernel, loop)
    if not inner or loop.axes[-len(inner) :] == inner:
        return loop
    extents = [axis.extent for axis in inner]
    if not all(isinstance(n, int) for n in extents) or prod(extents) > most:  # type: ignore[arg-type]
        return loop
    return replace(loop, axes=(*[axis for axis in loop.axes if axis not in inner], *inner))


def _repeated(kernel: Kernel, loop: Loop) -> tuple[Axis, ...]:
    """The axes that none of the loop's reads of the kernel's reductions depends on; none unless both read the same memory."""
    reductions = [member for member in kernel.loops if member.reduce_axes]
    results = {write.buffer for member in reductions for write in loop_writes(member)}
    shared = {read.buffer for member in reductions for read in loop_reads(member)}
    uses = list(_uses(loop, results))
    if not uses or not any(read.buffer in shared for read in loop_reads(loop)):
        return ()
    used = [symbols_of(use.index) for use in uses]
    if any(symbols != used[0] for symbols in used):
        return ()
    return tuple([axis for axis in loop.axes if axis.symbol not in used[0]])


def _uses(loop: Loop, buffers: set[str]) -> Iterator[Access]:
    return (read for read in loop_reads(loop) if read.buffer in buffers)
