"""Places that follow each other along several axes at once, which Triton cannot see from the axes one by one.

before   tl.store(b1 + (64*j2 + 2*j4 + j5), v)     two neighbours at a time; j5 = x % 2, j4 = x // 2 % 32, j2 = x // 64
after    tl.store(b1 + x, v)                       the same places, 16 bytes at a time; x: the number of the point
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle_codegen.ir.loops import IntLike
from treadle_codegen.lower.indexing import linear
from treadle_codegen.schedule.access import split_index
from treadle_codegen.targets.triton.tiles import points

if TYPE_CHECKING:
    from treadle_codegen.targets.triton.body_writer import BodyWriter


def place(writer: BodyWriter, index: IntLike) -> str:
    """The text of an index, its last axes as one where they follow each other."""
    dim = writer.dims.get("x")
    if len(writer.dims) != 1 or dim is None or dim.in_one_row or writer.rank != 1 or len(dim.axes) < 2:
        return writer.index(index)
    split = split_index(index, [axis.symbol for axis in dim.axes])
    if split is None or any(axis.extent == 0 for axis in dim.axes):
        return writer.index(index)
    steps, offset = split
    run: IntLike = 1
    first = len(steps)
    while first > 0 and steps[first - 1] == run:
        first -= 1
        run = run * dim.axes[first].extent
    if len(steps) - first < 2:
        return writer.index(index)
    tail = dim.name if first == 0 else f"{dim.name} % ({writer.index(points(dim.axes[first:]))})"
    head = linear([axis.symbol for axis in dim.axes[:first]], list(steps[:first]), offset)
    return tail if head == 0 else f"{writer.index(head)} + {tail}"
