"""Which kernels begin before the one before them ends (`begin_kernel` of the prelude).

Its blocks are then in place when they can begin, but each of them waits by itself, which seems to take about a microsecond. Measured on an
H200, kernels over 64 MB: where blocks move 6 KB and more, that is hidden (softmax of float32 35.8 -> 33.8 us, a sum in two kernels 19.9 ->
17.0 us); where they move 4 KB and less it is not (upsampling of bfloat16, 2.4 KB a block: 85 us in kernels without it, 158 us in kernels
that wait). Where all blocks run at once, each waits once.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle_codegen.ir.loops import IntLike, Program
from treadle_codegen.schedule.access import loop_reads, loop_writes
from treadle_codegen.schedule.kernel import Kernel

_BYTES_PER_BLOCK = 5 << 10
_BLOCKS_AT_ONCE = 16 * 132  # of 4 warps, on a large GPU


def why_not_early(kernel: Kernel, program: Program, grid: Sequence[tuple[IntLike, int]]) -> str | None:
    """Why a kernel begins when the one before it has ended. `grid`: points and block of each dimension."""
    blocks = 1
    for points, block in grid:
        if not isinstance(points, int):
            return None  # nobody knows yet
        blocks *= -(-points // block)
    if blocks <= _BLOCKS_AT_ONCE:
        return None
    moved = _bytes_moved(kernel, program)
    if moved is not None and moved < blocks * _BYTES_PER_BLOCK:
        return "its blocks are too short to wait"
    return None


def _bytes_moved(kernel: Kernel, program: Program) -> int | None:
    """The bytes of all buffers in memory that a kernel reads or writes; None where sizes are unknown."""
    names = {a.buffer for loop in kernel.loops for a in (*loop_reads(loop), *loop_writes(loop))} - kernel.locals.keys()
    total = 0
    for name in names:
        size = program.buffers[name].dtype.itemsize
        for n in program.buffers[name].shape:
            if not isinstance(n, int):
                return None
            size *= n
        total += size
    return total
