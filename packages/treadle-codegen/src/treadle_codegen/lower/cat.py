"""Concatenation and padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle_codegen.ir.loops import IntLike, Load, View
from treadle_codegen.ir.ops import LOW_FLOATS, compute_dtype
from treadle_codegen.lower.context import Lowering, view_of
from treadle_codegen.lower.indexing import Shape, as_shape, is_dense, linear
from treadle_codegen.lower.loop_builder import LoopBuilder, number
from treadle_codegen.lower.overwrite import holds
from treadle_codegen.lower.pointwise import convert
from treadle_codegen.lower.registry import lowering
from treadle_codegen.lower.tensor_expr import NOTHING, Index, TensorExpr, ViewMap, normalize_dim
from treadle_codegen.lower.view import identity, insert, slice_of
from treadle_shapes.expr import And, Ge, Lt, free_symbols, maximum, minimum

_MOST_SYMBOLS = 16
"""Sizes that the offsets of a kernel's text may be sums of."""


@lowering("aten.cat.default", "aten.concat.default")
def cat(lw: Lowering, tensors: Sequence[TensorExpr], dim: int = 0) -> TensorExpr | None:
    """One loop per input, each writing its part of the result."""
    shape, strides = as_shape(lw.val.shape), as_shape(lw.val.stride())
    # A 1-d tensor without elements is skipped whatever the shape of the others: an old rule that eager keeps.
    tensors = [x for x in tensors if x.shape != (0,)]
    if not tensors:
        return lw.full(shape, 0, lw.val.dtype)
    if len(tensors) == 1:
        return convert(lw, tensors[0], lw.val.dtype)
    d = normalize_dim(dim, len(shape))
    if why_not_select(lw, tensors) is None:
        return _selected(lw, [convert(lw, x, lw.val.dtype) for x in tensors], d, shape)
    if why_not_add_up(tensors, d) is not None:
        return None
    buffer = lw.new_buffer(shape, lw.val.dtype, strides if is_dense(shape, strides) else None)
    start: IntLike = 0
    for x in tensors:
        offset = start * buffer.strides[d]
        lw.write_into(View(buffer.name, x.shape, buffer.strides, offset), x)
        start = start + x.shape[d]
    return TensorExpr.stored(view_of(buffer), buffer.dtype)


def why_not_select(lw: Lowering, tensors: Sequence[TensorExpr]) -> str | None:
    """Why no element should choose the tensor that it comes from: why the tensors should be copied one by one."""
    if len(tensors) > lw.costs.select_in_cat:
        return "each element would ask for many tensors"
    if any(x.cost > 2 or any(size == 0 for size in x.shape) for x in tensors):
        return "computing an element for nothing is expensive"
    return None


def why_not_add_up(tensors: Sequence[TensorExpr], d: int) -> str | None:
    """Why no kernel should add up where each tensor begins: why ATen concatenates them."""
    if len(frozenset[Any]().union(*[free_symbols(x.shape[d]) for x in tensors])) > _MOST_SYMBOLS:
        return "the text of all offsets together grows with the square of the number of sizes"
    return None


def _selected(lw: Lowering, tensors: Sequence[TensorExpr], d: int, shape: Shape) -> TensorExpr:
    """A computed tensor whose elements each come from one of the tensors; the others are not read there."""

    def element(o: LoopBuilder, index: Index) -> int:
        return _chosen(o, tensors, d, index, 0)

    reads = NOTHING.union(*[x.reads for x in tensors])
    return TensorExpr.computed(shape, lw.val.dtype, element, sum(x.cost + 1 for x in tensors), reads)


def _chosen(o: LoopBuilder, tensors: Sequence[TensorExpr], d: int, index: Index, start: IntLike) -> int:
    """The element of the first tensor, which begins at `start`, or of those behind it."""
    first, *rest = tensors
    end = start + first.shape[d]
    with o.mask(And(Ge(index[d], start), Lt(index[d], end))):
        mine = first.element(o, (*index[:d], index[d] - start, *index[d + 1 :]))
    if not rest:
        return mine
    others = _chosen(o, rest, d, index, end)
    return o.op("where", o.op("lt", o.index(index[d]), o.index(end)), mine, others)


@lowering("aten.stack.default")
def stack(lw: Lowering, tensors: Sequence[TensorExpr], dim: int = 0) -> TensorExpr | None:
    d = dim % (tensors[0].dim + 1)
    return cat(lw, [x.view(insert(x.shape, d)) for x in tensors], d)


@lowering("aten.constant_pad_nd.default")
def constant_pad_nd(lw: Lowering, x: TensorExpr, pad: Sequence[Any], value: Any = 0) -> TensorExpr | None:
    target = as_shape(lw.val.shape)
    amounts = as_shape(pad)
    before: list[IntLike] = [0] * x.dim
    padded = []
    for k in range(len(amounts) // 2):
        d, (left, right) = x.dim - 1 - k, amounts[2 * k : 2 * k + 2]
        if isinstance(left, int) and left < 0:
            x = x.view(slice_of(x.shape, d, -left, x.shape[d] + left))
            left = 0
        if isinstance(right, int) and right < 0:
            x = x.view(slice_of(x.shape, d, 0, x.shape[d] + right))
            right = 0
        before[d] = left
        if left != 0 or right != 0:
            padded.append(d)
    if not padded:
        return x.view(identity(x.shape))
    if any(size == 0 for size in x.shape):
        return lw.full(target, value, x.dtype)
    if x.cost > 2:
        lw.realize(x)
    source = x

    def element(o: LoopBuilder, index: Index) -> int:
        at = tuple([i - b for i, b in zip(index, before, strict=True)])
        return element_or(o, source, at, padded, value)

    return TensorExpr.computed(target, x.dtype, element, x.cost + 2, x.reads)


def _mapped_pad(lw: Lowering, x: TensorExpr, padding: Sequence[Any], source: Any) -> TensorExpr | None:
    """Padding whose elements are elements of `x`: `source(i, size)` gives the position for an index relative to x's first."""
    target, amounts = as_shape(lw.val.shape), as_shape(padding)
    if any(not isinstance(a, int) or a < 0 for a in amounts) or any(size == 0 for size in x.shape):
        return None
    before: list[IntLike] = [0] * x.dim
    for k in range(len(amounts) // 2):
        before[x.dim - 1 - k] = amounts[2 * k]
    padded = x.dim - len(amounts) // 2
    if x.cost > 1:
        lw.realize(x)

    def index_of(index: Index) -> Index:
        return tuple([i if d < padded else source(i - before[d], x.shape[d]) for d, i in enumerate(index)])

    return x.view(ViewMap(target, index_of, lambda view: None))


@lowering("aten.replication_pad1d.default", "aten.replication_pad2d.default", "aten.replication_pad3d.default")
def replication_pad(lw: Lowering, x: TensorExpr, padding: Sequence[Any]) -> TensorExpr | None:
    return _mapped_pad(lw, x, padding, lambda i, size: minimum(maximum(i, 0), size - 1))


@lowering("aten.reflection_pad1d.default", "aten.reflection_pad2d.default", "aten.reflection_pad3d.default")
def reflection_pad(lw: Lowering, x: TensorExpr, padding: Sequence[Any]) -> TensorExpr | None:
    def reflected(i: IntLike, size: IntLike) -> IntLike:
        positive = maximum(i, -i)
        # The outer bounds say nothing new, except to interval analysis.
        return minimum(maximum(minimum(positive, 2 * (size - 1) - positive), 0), size - 1)

    return _mapped_pad(lw, x, padding, reflected)


def element_or(o: LoopBuilder, x: TensorExpr, at: Index, dims: Sequence[int], otherwise: Any) -> int:
    """The element at an index that may be outside of `x` in `dims`, where it is the number `otherwise`."""
    inside = And(*[And(Ge(at[d], 0), Lt(at[d], x.shape[d])) for d in dims])
    if inside is True:
        return x.element(o, at)
    dtype = compute_dtype(x.dtype)
    if inside is False:
        return o.const(otherwise, dtype)
    view = x.storage
    if view is not None and not o.masked and x.dtype not in LOW_FLOATS:
        load = Load(view.buffer, linear(at, view.strides, view.offset))
        return o.emit("masked_load", dtype=x.dtype, attr=(load, inside, number(otherwise, x.dtype)))
    with o.mask(inside):
        value = x.element(o, at)
    return o.op("where", holds(o, x, at, dims), value, o.const(otherwise, dtype))
