"""Running sums and products.

A row that one worker would walk alone is cut into equal parts: their totals first, the running totals of these, then the parts, each on
top of what comes before it::

    y = cumsum(x)      x[0:4096], x[4096:8192], ...      t = sum of each part;  u = cumsum(t);  y[k, i] = u[k - 1] + cumsum(x[k])[i]
"""

from __future__ import annotations

import torch

from treadle_codegen.ir.loops import Loop
from treadle_codegen.ir.ops import FLOATS, INTS, compute_dtype
from treadle_codegen.lower.context import Lowering, view_of
from treadle_codegen.lower.indexing import Shape, as_shape, contiguous, even_parts, linear, product
from treadle_codegen.lower.loop_builder import LoopBuilder
from treadle_codegen.lower.nest import record_nest
from treadle_codegen.lower.registry import lowering
from treadle_codegen.lower.split_axes import split_axes
from treadle_codegen.lower.tensor_expr import Index, TensorExpr, normalize_dim
from treadle_codegen.lower.view import reshape
from treadle_shapes.expr import Lt

_LONG = 1 << 14  # elements that one worker walks at most where there are too few rows
_SHORT = 32  # elements of a part at least
_NEIGHBOURS = 32  # rows next to each other in memory that share a worker


@lowering("aten.cumsum.default")
def cumsum(lw: Lowering, x: TensorExpr, dim: int, *, dtype: torch.dtype | None = None) -> TensorExpr | None:
    return _running(lw, "sum", x, dim)


@lowering("aten.cumprod.default")
def cumprod(lw: Lowering, x: TensorExpr, dim: int, *, dtype: torch.dtype | None = None) -> TensorExpr | None:
    return _running(lw, "prod", x, dim)


def _running(lw: Lowering, kind: str, x: TensorExpr, dim: int) -> TensorExpr | None:
    result = lw.val.dtype
    accumulate = compute_dtype(result)
    if not lw.costs.scans or accumulate not in FLOATS | INTS or result not in lw.dtypes:
        return None
    if x.dim == 0 or any(size == 0 for size in x.shape):
        return None
    d = normalize_dim(dim, x.dim)
    strides = as_shape(lw.val.stride())
    parts = _parts(lw, x, d)
    if parts is None:
        return None
    x = lw.pointwise(lambda o, v: v, [x], accumulate, shape=x.shape, compute=accumulate)
    if parts == 1:
        return _scan(lw, kind, x, d, result, strides)
    length = x.shape[d]
    assert isinstance(length, int), "rows of unknown length are not cut"
    lw.realize_for_reuse(x)
    split = (*x.shape[:d], parts, length // parts, *x.shape[d + 1 :])
    pieces = x.view(reshape(x.shape, split))
    totals = lw.reduce(kind, pieces, [d + 1], dtype=accumulate, accumulate=accumulate)
    before = _scan(lw, kind, totals, d, accumulate, contiguous(totals.shape))
    cut = (*strides[:d], strides[d] * (length // parts), *strides[d:])
    return _scan(lw, kind, pieces, d + 1, result, cut, before).view(reshape(split, x.shape))


def _parts(lw: Lowering, x: TensorExpr, d: int) -> int | None:
    """Into how many parts rows along dimension `d` are cut, 1 for whole rows; None where only ATen has enough workers."""
    length, points = x.shape[d], product([s for k, s in enumerate(x.shape) if k != d])
    if not isinstance(length, int) or not isinstance(points, int):
        return 1
    strides = x.storage.strides if x.storage is not None else (x.layout or contiguous(x.shape))
    neighbours = 1 if strides[d] == 1 else min(points, _NEIGHBOURS)
    workers = -(-points // neighbours)
    if length * neighbours <= _LONG or workers >= lw.costs.min_parallel:
        return 1
    wanted = min(-(-2 * lw.costs.min_parallel // workers), length // _SHORT)
    parts = even_parts(length, wanted)
    return parts if length % parts == 0 else None


def _scan(
    lw: Lowering, kind: str, x: TensorExpr, d: int, dtype: torch.dtype, strides: Shape, before: TensorExpr | None = None
) -> TensorExpr:
    """Stored running totals along dimension `d`; `before`: running totals of the parts that dimension `d - 1` counts."""
    op = {"sum": "add", "prod": "mul"}[kind]

    def element(o: LoopBuilder, index: Index, _: object) -> int:
        value = x.element(o, index)
        if x.shape[d] != 1:
            value = o.emit("scan", value, dtype=o.dtype_of(value), attr=kind)
        if before is None:
            return o.cast(value, compute_dtype(dtype))
        part = index[d - 1]
        with o.mask(Lt(0, part)):
            there = before.element(o, (*index[: d - 1], part - 1, *index[d + 1 :]))
        is_first = o.op("eq", o.index(part), o.const(0, torch.int64))
        return o.cast(o.op("where", is_first, value, o.op(op, there, value)), compute_dtype(dtype))

    # The axis of the running totals comes last, whatever the order in memory.
    order = tuple([0 if k == d else s for k, s in enumerate(strides)])
    nest = record_nest(x.shape, order, element, {})
    assert nest is not None, "tensors without elements are ATen's"
    view = view_of(lw.new_buffer(x.shape, dtype, strides))
    o = nest.builder
    o.store(view.buffer, linear(nest.index, view.strides, view.offset), nest.value, dtype)
    loop = Loop(lw.fresh(f"loop_{view.buffer}"), nest.axes, (), tuple(o.body), tuple({**o.origins, lw.name: None}))
    lw.steps.append(split_axes(loop))
    return TensorExpr.stored(view, dtype)
