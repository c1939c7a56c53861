"""Views: index maps, and strides where the result is a strided view of strided memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle_codegen.ir.loops import IntLike, View
from treadle_codegen.lower.context import Lowering
from treadle_codegen.lower.indexing import (
    Shape,
    as_shape,
    is_dense,
    product,
    reshape_index,
    reshape_strides,
    same_strides,
)
from treadle_codegen.lower.registry import lowering
from treadle_codegen.lower.tensor_expr import Index, TensorExpr, ViewMap, normalize_dim
from treadle_shapes.expr import Expr, Lt, maximum, where

# -- the maps ----------------------------------------------------------------------------------------------------------


def identity(shape: Shape) -> ViewMap:
    return ViewMap(shape, lambda index: index, lambda view: view)


def reshape(shape: Shape, target: Shape) -> ViewMap:
    """Same elements in row-major order."""

    def strided(view: View) -> View | None:
        strides = reshape_strides(shape, view.strides, target)
        return None if strides is None else View(view.buffer, target, strides, view.offset)

    return ViewMap(target, lambda index: reshape_index(shape, target, index), strided)


def permute(shape: Shape, dims: Sequence[int]) -> ViewMap:
    """Result dimension k is source dimension dims[k]."""
    target = tuple([shape[d] for d in dims])
    inverse = sorted(range(len(dims)), key=lambda k: dims[k])
    return ViewMap(
        target,
        lambda index: tuple([index[k] for k in inverse]),
        lambda view: View(view.buffer, target, tuple([view.strides[d] for d in dims]), view.offset),
    )


def expand(shape: Shape, target: Shape) -> ViewMap:
    """Broadcast dimensions of size 1 and add leading ones."""
    lead = len(target) - len(shape)
    stretched = [shape[d] == 1 and target[d + lead] != 1 for d in range(len(shape))]

    def index_of(index: Index) -> Index:
        return tuple([0 if shape[d] == 1 else index[d + lead] for d in range(len(shape))])

    def strided(view: View) -> View:
        own = tuple([0 if s else stride for s, stride in zip(stretched, view.strides, strict=True)])
        return View(view.buffer, target, (0,) * lead + own, view.offset)

    return ViewMap(target, index_of, strided)


def slice_of(shape: Shape, dim: int, start: IntLike, length: IntLike, step: int = 1) -> ViewMap:
    """`length` elements of a dimension from `start`, every `step`-th."""
    target = (*shape[:dim], length, *shape[dim + 1 :])
    return ViewMap(
        target,
        lambda index: (*index[:dim], index[dim] * step + start, *index[dim + 1 :]),
        lambda view: View(
            view.buffer,
            target,
            (*view.strides[:dim], view.strides[dim] * step, *view.strides[dim + 1 :]),
            view.offset + view.strides[dim] * start,
        ),
    )


def narrow(shape: Shape, dim: int, start: IntLike, length: IntLike) -> ViewMap:
    return slice_of(shape, dim, start, length)


def select(shape: Shape, dim: int, at: IntLike) -> ViewMap:
    """One position of a dimension, which goes away."""
    target = (*shape[:dim], *shape[dim + 1 :])
    return ViewMap(
        target,
        lambda index: (*index[:dim], at, *index[dim:]),
        lambda view: View(
            view.buffer,
            target,
            (*view.strides[:dim], *view.strides[dim + 1 :]),
            view.offset + view.strides[dim] * at,
        ),
    )


def insert(shape: Shape, dim: int) -> ViewMap:
    """A new dimension of size 1."""
    target = (*shape[:dim], 1, *shape[dim:])

    def strided(view: View) -> View:
        stride = shape[dim] * view.strides[dim] if dim < len(shape) else 1
        return View(view.buffer, target, (*view.strides[:dim], stride, *view.strides[dim:]), view.offset)

    return ViewMap(target, lambda index: (*index[:dim], *index[dim + 1 :]), strided)


def flip(shape: Shape, dims: Sequence[int]) -> ViewMap:
    """Reversed dimensions; strides would be negative, which torch does not have."""
    chosen = frozenset(dims)
    return ViewMap(
        shape,
        lambda index: tuple([shape[d] - 1 - i if d in chosen else i for d, i in enumerate(index)]),
        lambda view: view if all(shape[d] == 1 for d in chosen) else None,
    )


def diagonal_map(shape: Shape, offset: int, dim1: int, dim2: int, length: IntLike) -> ViewMap:
    """Elements with index dim2 - dim1 == offset; they become the last dimension."""
    rest = [d for d in range(len(shape)) if d not in (dim1, dim2)]
    target = (*[shape[d] for d in rest], length)
    row, column = max(-offset, 0), max(offset, 0)

    def index_of(index: Index) -> Index:
        result: list[IntLike] = [0] * len(shape)
        for d, i in zip(rest, index[:-1], strict=True):
            result[d] = i
        result[dim1], result[dim2] = index[-1] + row, index[-1] + column
        return tuple(result)

    def strided(view: View) -> View:
        a, b = view.strides[dim1], view.strides[dim2]
        strides = (*[view.strides[d] for d in rest], a + b)
        return View(view.buffer, target, strides, view.offset + a * row + b * column)

    return ViewMap(target, index_of, strided)


def unfold_map(shape: Shape, dim: int, size: int, step: int, count: IntLike) -> ViewMap:
    """Windows of a dimension; their elements become the last dimension."""
    target = (*shape[:dim], count, *shape[dim + 1 :], size)
    return ViewMap(
        target,
        lambda index: (*index[:dim], index[dim] * step + index[-1], *index[dim + 1 : -1]),
        lambda view: View(
            view.buffer,
            target,
            (*view.strides[:dim], view.strides[dim] * step, *view.strides[dim + 1 :], view.strides[dim]),
            view.offset,
        ),
    )


# -- the operators -----------------------------------------------------------------------------------------------------


@lowering("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default", "aten.view_copy.default")
def view(lw: Lowering, x: TensorExpr, size: Sequence[Any]) -> TensorExpr:
    return x.view(reshape(x.shape, as_shape(lw.val.shape)))  # what -1 stands for, the trace has worked out


@lowering("aten._reshape_alias.default")
def reshape_alias(lw: Lowering, x: TensorExpr, size: Sequence[Any], stride: Sequence[Any]) -> TensorExpr:
    return view(lw, x, size)


@lowering("aten.permute.default", "aten.permute_copy.default")
def permute_(lw: Lowering, x: TensorExpr, dims: Sequence[int]) -> TensorExpr:
    return x.view(permute(x.shape, [normalize_dim(d, x.dim) for d in dims]))


@lowering("aten.transpose.int", "aten.transpose_copy.int")
def transpose(lw: Lowering, x: TensorExpr, dim0: int, dim1: int) -> TensorExpr:
    if x.dim == 0:
        return x.view(identity(x.shape))
    order = list(range(x.dim))
    a, b = normalize_dim(dim0, x.dim), normalize_dim(dim1, x.dim)
    order[a], order[b] = order[b], order[a]
    return x.view(permute(x.shape, order))


@lowering("aten.t.default", "aten.t_copy.default", "aten.numpy_T.default")
def t(lw: Lowering, x: TensorExpr) -> TensorExpr:
    return x.view(permute(x.shape, list(range(x.dim))[::-1]))


@lowering("aten.expand.default", "aten.expand_copy.default")
def expand_(lw: Lowering, x: TensorExpr, size: Sequence[Any]) -> TensorExpr:
    sizes = as_shape(size)
    lead = len(sizes) - x.dim
    target = tuple([x.shape[d - lead] if s == -1 else s for d, s in enumerate(sizes)])
    if product(target) != product(x.shape) and lw.why_store_for_broadcast(x) is not None:
        lw.realize(x)
    return x.view(expand(x.shape, target))


@lowering("aten.slice.Tensor", "aten.slice_copy.Tensor")
def slice_(
    lw: Lowering, x: TensorExpr, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> TensorExpr | None:
    d = normalize_dim(dim, x.dim)
    # The length of the result is known from the fake result, so only the start needs torch's clamping rule.
    length = as_shape(lw.val.shape)[d]
    size = x.shape[d]
    to_end = end is None or (isinstance(end, int) and end >= _NO_END)
    # A slice up to the end begins where its length says, whichever way the fake run has decided about its start.
    first = size - length if to_end and step == 1 and start is not None else clamped_start(size, start)
    if first is None:
        return None
    if length == 0:
        first = 0
    return x.view(slice_of(x.shape, d, first, length, step))


_NO_END = 2**63 - 1  # what torch writes for a slice without end


def clamped_start(size: IntLike, start: Any) -> IntLike | None:
    """The first position of a slice as torch clamps it; None if that cannot be told for symbolic sizes."""
    if start is None:
        return 0
    (first,) = as_shape([start])
    if isinstance(first, int) and isinstance(size, int):
        return max(first + size, 0) if first < 0 else min(first, size)
    if isinstance(first, int):
        # -n is before the first position of a dimension that turns out to be shorter than n.
        return maximum(size + first, 0) if first < 0 else first
    lower = getattr(first, "lower", None)  # a number known only at run time has no bound of its own
    return first if lower is not None and lower >= 0 else None


@lowering("aten.narrow_copy.default")
def narrow_copy(lw: Lowering, x: TensorExpr, dim: int, start: Any, length: Any) -> TensorExpr | None:
    d = normalize_dim(dim, x.dim)
    (first,) = as_shape([start])
    if not isinstance(first, int):
        return None
    return x.view(slice_of(x.shape, d, first + x.shape[d] if first < 0 else first, as_shape(lw.val.shape)[d]))


@lowering("aten.select.int", "aten.select_copy.int")
def select_(lw: Lowering, x: TensorExpr, dim: int, index: Any) -> TensorExpr:
    d = normalize_dim(dim, x.dim)
    (at,) = as_shape([index])
    return x.view(select(x.shape, d, where(Lt(at, 0), x.shape[d] + at, at)))


@lowering("aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze_copy.default",
          "aten.squeeze_copy.dim", "aten.squeeze_copy.dims")  # fmt: skip
def squeeze(lw: Lowering, x: TensorExpr, dim: Any = None) -> TensorExpr:
    dims = range(x.dim) if dim is None else [dim] if isinstance(dim, int) else dim
    for d in sorted({normalize_dim(d, x.dim) for d in dims}, reverse=True):
        if x.dim and x.shape[d] == 1:
            x = x.view(select(x.shape, d, 0))
    return x.view(identity(x.shape))


@lowering("aten.unsqueeze.default", "aten.unsqueeze_copy.default")
def unsqueeze(lw: Lowering, x: TensorExpr, dim: int) -> TensorExpr:
    return x.view(insert(x.shape, dim % (x.dim + 1)))


@lowering(
    "aten.alias.default",
    "aten.detach.default",
    "aten.alias_copy.default",
    "aten.lift_fresh_copy.default",
    "aten.lift_fresh.default",
)
def alias(lw: Lowering, x: TensorExpr) -> TensorExpr:
    return x.view(identity(x.shape))


@lowering("aten.split.Tensor", "aten.split_with_sizes.default", "aten.unsafe_split.Tensor", "aten.unsafe_split_with_sizes.default",
          "aten.chunk.default", "aten.split_with_sizes_copy.default", "aten.split_copy.Tensor", "aten.unsafe_chunk.default")  # fmt: skip
def split(lw: Lowering, x: TensorExpr, sizes: Any, dim: int = 0) -> tuple[TensorExpr, ...]:
    d = normalize_dim(dim, x.dim)
    parts, start = [], 0
    for val in lw.val:
        length = as_shape(val.shape)[d]
        parts.append(x.view(slice_of(x.shape, d, start, length)))
        start = start + length
    return tuple(parts)


@lowering("aten.unbind.int", "aten.unbind_copy.int")
def unbind(lw: Lowering, x: TensorExpr, dim: int = 0) -> tuple[TensorExpr, ...]:
    d = normalize_dim(dim, x.dim)
    return tuple(x.view(select(x.shape, d, k)) for k in range(len(lw.val)))


@lowering("aten.flip.default")
def flip_(lw: Lowering, x: TensorExpr, dims: Sequence[int]) -> TensorExpr:
    return x.view(flip(x.shape, [normalize_dim(d, x.dim) for d in dims] if x.dim else []))


@lowering("aten.roll.default")
def roll(lw: Lowering, x: TensorExpr, shifts: Any, dims: Any = ()) -> TensorExpr:
    shifts = [shifts] if isinstance(shifts, (int, Expr)) else list(shifts)
    dims = [dims] if isinstance(dims, int) else list(dims)
    if not dims:
        flat = x.view(reshape(x.shape, (product(x.shape),)))
        return roll(lw, flat, shifts, [0]).view(reshape((product(x.shape),), x.shape))
    for shift, dim in zip(shifts, dims, strict=True):
        d = normalize_dim(dim, x.dim)
        if x.dim and x.shape[d] != 0:
            x = x.view(_roll_map(x.shape, d, shift))
    return x.view(identity(x.shape))


def _roll_map(shape: Shape, d: int, shift: IntLike) -> ViewMap:
    size = shape[d]
    start = -shift % size

    def moved(i: IntLike) -> IntLike:
        # Choosing takes a third of the time of dividing by a constant, a tenth of dividing by a symbol.
        return where(Lt(i + start, size), i + start, i + start - size)

    return ViewMap(
        shape,
        lambda index: (*index[:d], moved(index[d]), *index[d + 1 :]),
        lambda view: view if start == 0 else None,
    )


@lowering("aten.repeat.default")
def repeat(lw: Lowering, x: TensorExpr, repeats: Sequence[Any]) -> TensorExpr:
    counts = as_shape(repeats)
    lead = len(counts) - x.dim
    source = (1,) * lead + x.shape
    target = tuple([size * count for size, count in zip(source, counts, strict=True)])
    if x.cost > 1:
        lw.realize(x)

    def index_of(index: Index) -> Index:
        return tuple(
            [i if n == 1 else 0 if s == 1 else i % s for i, s, n in zip(index, source, counts, strict=True)][lead:]
        )

    if 0 in target:
        return lw.full(target, 0, x.dtype)
    return x.view(ViewMap(target, index_of, lambda view: None))


@lowering("aten.diagonal.default", "aten.diagonal_copy.default")
def diagonal(lw: Lowering, x: TensorExpr, offset: int = 0, dim1: int = 0, dim2: int = 1) -> TensorExpr:
    a, b = normalize_dim(dim1, x.dim), normalize_dim(dim2, x.dim)
    length = as_shape(lw.val.shape)[-1]
    return x.view(diagonal_map(x.shape, offset, a, b, length))


@lowering("aten.unfold.default", "aten.unfold_copy.default")
def unfold(lw: Lowering, x: TensorExpr, dimension: int, size: int, step: int) -> TensorExpr | None:
    if x.dim == 0:
        return None
    d = normalize_dim(dimension, x.dim)
    return x.view(unfold_map(x.shape, d, size, step, as_shape(lw.val.shape)[d]))


@lowering("aten.as_strided.default", "aten.as_strided_copy.default")
def as_strided(
    lw: Lowering, x: TensorExpr, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None
) -> TensorExpr | None:
    """A view of the storage of `x`: only where `x` is all of its storage, so that its layout is ours to know."""
    assert lw.node is not None
    val = lw.node.args[0].meta["val"]  # type: ignore[union-attr]
    whole = val.untyped_storage().nbytes() == val.numel() * val.element_size() and val.storage_offset() == 0
    if not whole or x.layout is None or not is_dense(x.shape, x.layout):
        return None
    stored = lw.realize(x, x.layout)
    if not same_strides(x.shape, stored.strides, x.layout):
        copied = lw.copy(x, x.layout).storage
        assert copied is not None
        stored = copied
    offset = stored.offset + (0 if storage_offset is None else as_shape([storage_offset])[0])
    return TensorExpr.stored(View(stored.buffer, as_shape(size), as_shape(stride), offset), x.dtype)


@lowering("aten.pixel_shuffle.default")
def pixel_shuffle(lw: Lowering, x: TensorExpr, upscale_factor: int) -> TensorExpr:
    r, (*batch, channels, height, width) = upscale_factor, x.shape
    n = len(batch)
    x = x.view(reshape(x.shape, (*batch, channels // (r * r), r, r, height, width)))
    x = x.view(permute(x.shape, [*range(n), n, n + 3, n + 1, n + 4, n + 2]))
    return x.view(reshape(x.shape, as_shape(lw.val.shape)))


@lowering("aten.pixel_unshuffle.default")
def pixel_unshuffle(lw: Lowering, x: TensorExpr, downscale_factor: int) -> TensorExpr:
    r, (*batch, channels, height, width) = downscale_factor, x.shape
    n = len(batch)
    x = x.view(reshape(x.shape, (*batch, channels, height // r, r, width // r, r)))
    x = x.view(permute(x.shape, [*range(n), n, n + 2, n + 4, n + 1, n + 3]))
    return x.view(reshape(x.shape, as_shape(lw.val.shape)))
