"""What Triton cannot see of a gather: that neighbouring points read neighbouring elements.

    tl.load(b1 + (row * 1024 + column))              row: read from memory, the same for all points of a block along the columns

Triton takes a value that was read for another one at each point, and loads the elements one by one. `tl.max_contiguous` and
`tl.multiple_of` say what is known of the axes (triton/language/core.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from treadle_codegen.ir.loops import IntLike
from treadle_codegen.schedule.access import step_along

if TYPE_CHECKING:
    from treadle_codegen.targets.triton.body_writer import BodyWriter, Dim

_LONGEST = 16  # elements: more need no promise, as no access is wider than 16 bytes


def neighbours(
    writer: BodyWriter, offset: str, dims: frozenset[str], indices: Sequence[str], strides: Sequence[IntLike]
) -> str:
    """The text of an offset into a buffer, with what is known of it; `indices`: the values that it is made of."""
    if not dims:
        return offset
    runs, multiples = [], []
    for letter, dim in writer.dims.items():
        multiple = _multiple(writer, dim, indices, strides) if letter in dims else None
        runs.append(1 if multiple is None else min(writer.constants[dim.block], _LONGEST))
        multiples.append(multiple or 1)
    if max(runs) == 1:
        return offset
    runs += [1] * (writer.rank - len(runs))
    multiples += [1] * (writer.rank - len(multiples))
    return f"tl.max_contiguous(tl.multiple_of({offset}, {multiples}), {runs})"


def _multiple(writer: BodyWriter, dim: Dim, indices: Sequence[str], strides: Sequence[IntLike]) -> int | None:
    """What the first offset of each run of neighbours along a dimension is a multiple of; None where they are no neighbours."""
    axis, block = dim.axes[-1], writer.constants[dim.block]
    if not isinstance(axis.extent, int) or axis.extent % block != 0:
        return None  # a run would go on in the next row
    multiple, along = min(block, _LONGEST), 0
    for index, stride in zip(indices, strides, strict=True):
        symbols = writer.value_symbols.get(index)
        if symbols is None:
            return None
        if axis.symbol not in symbols:
            multiple = math.gcd(multiple, stride) if isinstance(stride, int) else 1
            continue
        if stride != 1 or step_along(writer.expressions.get(index), axis) != 1:
            return None
        along += 1
        if writer.expressions[index] != axis.symbol:
            multiple = 1
    return multiple if along == 1 else None


__all__ = ["neighbours"]
