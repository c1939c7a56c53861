"""Mean and squared deviations of the elements that go into one result.

The deviations need the mean, so the elements are read twice. Where a kernel can hold a row (`Costs.held_row`), a longer row is cut into
equal chunks that it can hold, and one read serves both; the moments of the chunks then give those of the row::

    mean  = sum(mean_k) / parts                         mean_k, square_k: of the chunk k, of n elements
    square = sum(square_k + n * (mean_k - mean) ** 2)

Where rows lie across each other in memory (`lies_across`), the chunks are the columns of a row, so that loops walk along memory.

Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from treadle_codegen.ir.loops import IntLike
from treadle_codegen.ir.ops import compute_dtype
from treadle_codegen.lower.context import Lowering
from treadle_codegen.lower.indexing import Shape, contiguous, even_parts, product
from treadle_codegen.lower.loop_builder import LoopBuilder
from treadle_codegen.lower.tensor_expr import TensorExpr
from treadle_codegen.lower.view import reshape

After = Callable[[LoopBuilder, int], int]
_FEWEST_COLUMNS = 8
_NEIGHBOURS = 32  # results next to each other in memory that one program computes


def count_of(x: TensorExpr, dims: Sequence[int]) -> IntLike:
    """Number of elements that go into one result."""
    return product([x.shape[d] for d in dims])


def as_float(o: LoopBuilder, count: IntLike, dtype: torch.dtype) -> int:
    """A count as a float scalar."""
    return o.const(count, dtype) if isinstance(count, int) else o.cast(o.index(count), dtype)


def mean_of(lw: Lowering, x: TensorExpr, dims: Sequence[int], keepdim: bool, dtype: torch.dtype) -> TensorExpr:
    """Sum divided by count, stored."""
    accumulate = compute_dtype(dtype)
    count = count_of(x, dims)

    def after(o: LoopBuilder, total: int) -> int:
        return o.op("div", total, as_float(o, count, accumulate))

    return lw.reduce("sum", x, dims, keepdim=keepdim, dtype=dtype, accumulate=accumulate, after=after)


def moments(
    lw: Lowering, x: TensorExpr, dims: Sequence[int], dtype: torch.dtype, after: After | None = None
) -> tuple[TensorExpr, TensorExpr]:
    """(mean, `after` of the sum of squared deviations from it) over `dims`, which are kept with size 1; both stored."""
    chunks = chunks_of(lw, x, dims)
    if chunks is None:
        mean = mean_of(lw, x, dims, True, dtype)
        return mean, _squared_deviation(lw, x, mean, dims, dtype, after)
    accumulate = compute_dtype(dtype)
    split = x.view(reshape(x.shape, chunks.shape))
    mean_k = mean_of(lw, split, chunks.inner, True, accumulate)
    square_k = _squared_deviation(lw, split, mean_k, chunks.inner, accumulate, None)
    count = count_of(split, chunks.inner)
    mean = mean_of(lw, mean_k, chunks.outer, True, accumulate)

    def of_chunk(o: LoopBuilder, square: int, own: int, whole: int) -> int:
        gap = o.op("sub", own, whole)
        return o.op("add", square, o.op("mul", o.op("mul", gap, gap), as_float(o, count, accumulate)))

    squares = lw.pointwise(of_chunk, [square_k, mean_k, mean], accumulate, shape=mean_k.shape, compute=accumulate)
    total = lw.reduce("sum", squares, chunks.outer, keepdim=True, dtype=dtype, accumulate=accumulate, after=after)
    kept = tuple([1 if d in dims else s for d, s in enumerate(x.shape)])
    mean, total = [m.view(reshape(m.shape, kept)) for m in (mean, total)]
    return mean if dtype == accumulate else lw.pointwise(lambda o, v: v, [mean], dtype, shape=kept), total


def _squared_deviation(
    lw: Lowering, x: TensorExpr, mean: TensorExpr, dims: Sequence[int], dtype: torch.dtype, after: After | None
) -> TensorExpr:
    """Stored `after(o, sum((x - mean)**2))` over `dims`, with keepdim; `mean` keeps dimensions too."""
    accumulate = compute_dtype(dtype)
    centred = lw.pointwise(
        lambda o, v, m: o.op("mul", o.op("sub", v, m), o.op("sub", v, m)),
        [x, mean],
        dtype,
        shape=x.shape,
        compute=accumulate,
    )
    return lw.reduce("sum", centred, dims, keepdim=True, dtype=dtype, accumulate=accumulate, after=after)


@dataclass(frozen=True, slots=True)
class Chunks:
    """How reduced dimensions are cut: the shape with them as (parts, rest), and which of its dimensions count parts and which do not."""

    shape: Shape
    outer: tuple[int, ...]
    inner: tuple[int, ...]


def chunks_of(lw: Lowering, x: TensorExpr, dims: Sequence[int]) -> Chunks | None:
    """Equal chunks of the rows over `dims` of a tensor, or None where a row should stay whole."""
    lengths, others = [x.shape[d] for d in dims], [s for d, s in enumerate(x.shape) if d not in dims]
    length, points = product(lengths), product(others)
    costs = lw.costs
    if costs.moments_across and lies_across(x, dims):
        return Chunks(x.shape, tuple(dims[:1]), tuple(dims[1:]))
    if not costs.held_row or not isinstance(length, int) or not isinstance(points, int) or length * points == 0:
        return None
    strides = x.storage.strides if x.storage is not None else (x.layout or contiguous(x.shape))
    workers, needed = points, -(-length // costs.held_row)
    if any(stride == 1 and x.shape[d] != 1 and d not in dims for d, stride in enumerate(strides)):
        # Neighbours share a worker, which reads what they need again, but soon enough to find it in a cache.
        workers, needed = max(1, points // _NEIGHBOURS), -(-length // costs.max_row)
    elif needed < 2:
        return None
    parts = max(needed, min(2 * costs.min_parallel, points * length // costs.split_work) // workers)
    return None if parts < 2 else _cut(x.shape, dims, strides, parts)


def lies_across(x: TensorExpr, dims: Sequence[int]) -> bool:
    """Whether loops over rows of two dimensions would walk across memory: groups of channels, channels last."""
    if len(dims) != 2 or x.storage is None:
        return False
    strides = x.storage.strides
    slow, fast = dims
    if strides[slow] != 1 or x.shape[slow] == 1 or x.shape[fast] == 1 or not isinstance(x.shape[slow], int):
        return False
    others = [d for d in range(x.dim) if d not in dims and strides[d] == x.shape[slow]]
    columns = product([x.shape[d] for d in (slow, *others)])
    return not isinstance(columns, int) or columns >= _FEWEST_COLUMNS


def _cut(shape: Shape, dims: Sequence[int], strides: Shape, parts: int) -> Chunks | None:
    """`shape` with its slowest dimensions among `dims` cut into about `parts` in all; None if no equal parts come near."""
    order = sorted(dims, key=lambda d: -strides[d] if isinstance(strides[d], int) else 0)
    pieces: dict[int, int] = {}
    left = parts
    for d in order:
        size = shape[d]
        assert isinstance(size, int), "the product of the sizes is known"
        if left < 2:
            break
        pieces[d] = size if size <= left else even_parts(size, left)
        if size % pieces[d]:
            return None
        left = -(-left // pieces[d])
    cut: list[IntLike] = []
    outer: list[int] = []
    inner: list[int] = []
    for d, size in enumerate(shape):
        if d in pieces:
            outer.append(len(cut))
            cut.append(pieces[d])
            size = size // pieces[d]
        if d in dims:
            inner.append(len(cut))
        cut.append(size)
    return Chunks(tuple(cut), tuple(outer), tuple(inner))
