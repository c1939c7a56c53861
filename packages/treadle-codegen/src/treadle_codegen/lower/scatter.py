"""Writes at positions that are data: index_add, scatter and indexed assignment.

    y1 = index_add(y, 0, i, x)      y is needed no more: a loop adds x[j, c] to y[i[j], c], which is y1 from then on
                                    y is needed later:   the same in a copy of y

On CPUs the loop visits its points in order, so what is added to one element is added in eager's order, and of several values stored
to one element the last remains. Before it writes anything, the kernel checks all positions. On GPUs points come in any order, as in
eager unless its algorithms are to be deterministic: then, and for what has no atomic operation, ATen does it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from treadle_codegen.ir.loops import Loop
from treadle_codegen.ir.ops import FLOATS, INTS, LOW_FLOATS
from treadle_codegen.lower.context import Lowering
from treadle_codegen.lower.gather import is_index, position
from treadle_codegen.lower.indexing import Shape, as_shape, broadcast_index, broadcasts_to, contiguous
from treadle_codegen.lower.loop_builder import LoopBuilder
from treadle_codegen.lower.masked import is_mask, put_at_mask
from treadle_codegen.lower.nest import record_nest
from treadle_codegen.lower.overwrite import changeable
from treadle_codegen.lower.registry import lowering
from treadle_codegen.lower.split_axes import split_axes
from treadle_codegen.lower.tensor_expr import Index, TensorExpr, normalize_dim
from treadle_codegen.lower.view import identity

_REDUCTIONS = {"sum": "add", "add": "add", "amax": "max", "amin": "min", "prod": "mul", "multiply": "mul"}
_Points = Callable[[LoopBuilder, Index], tuple[int, Sequence[int]]]


@lowering("aten.index_add.default")
def index_add(
    lw: Lowering, x: TensorExpr, dim: int, index: TensorExpr, source: TensorExpr, *, alpha: Any = 1
) -> TensorExpr | None:
    if alpha != 1:
        return None
    return _along(lw, x, dim, index, source, "add")


@lowering("aten.index_copy.default")
def index_copy(lw: Lowering, x: TensorExpr, dim: int, index: TensorExpr, source: TensorExpr) -> TensorExpr | None:
    if index.dtype != torch.int64:
        return None
    return _along(lw, x, dim, index, source, "overwrite")


def _along(
    lw: Lowering, x: TensorExpr, dim: int, index: TensorExpr, source: TensorExpr, mode: str
) -> TensorExpr | None:
    """Slices of `source` along a dimension go where the vector `index` says."""
    d = normalize_dim(dim, x.dim)
    if why_not_loop(lw, x, mode) or x.dim == 0 or not is_index(index) or source.dtype != x.dtype:
        return None
    if source.shape != (*x.shape[:d], *index.shape, *x.shape[d + 1 :]):
        return None  # fake kernels do not compare all of it
    index, source = lw.realize_for_reuse(index), _read_in_order(lw, source)

    def points(o: LoopBuilder, at: Index) -> tuple[int, Sequence[int]]:
        there = [position(o, index, (i,), None, wrap=False) if k == d else o.index(i) for k, i in enumerate(at)]
        return source.element(o, at), there

    return _stored_wide(lw, x, source.shape, points, mode, (index, source))


@lowering("aten.scatter_add.default", "aten.scatter.src")
def scatter(lw: Lowering, x: TensorExpr, dim: int, index: TensorExpr, src: TensorExpr) -> TensorExpr | None:
    assert lw.node is not None
    mode = "add" if "scatter_add" in str(lw.node.target) else "overwrite"
    return _scattered(lw, x, dim, index, src, mode)


@lowering("aten.scatter.value")
def scatter_value(lw: Lowering, x: TensorExpr, dim: int, index: TensorExpr, value: Any) -> TensorExpr | None:
    return _scattered(lw, x, dim, index, lw.full(index.shape, value, x.dtype), "overwrite")


@lowering("aten.scatter_reduce.two")
def scatter_reduce(
    lw: Lowering,
    x: TensorExpr,
    dim: int,
    index: TensorExpr,
    src: TensorExpr,
    reduce: str,
    *,
    include_self: bool = True,
) -> TensorExpr | None:
    if reduce not in _REDUCTIONS or not include_self:
        return None
    return _scattered(lw, x, dim, index, src, _REDUCTIONS[reduce])


def _scattered(
    lw: Lowering, x: TensorExpr, dim: int, index: TensorExpr, src: TensorExpr, mode: str
) -> TensorExpr | None:
    """Each element of `src` goes to the position in dimension `dim` that `index` has at the same place."""
    if why_not_loop(lw, x, mode) or not is_index(index) or src.dtype != x.dtype:
        return None
    if x.dim == 0 or not (x.dim == index.dim == src.dim):
        return None
    d = normalize_dim(dim, x.dim)
    index, src = _read_in_order(lw, index), _read_in_order(lw, src)

    def points(o: LoopBuilder, at: Index) -> tuple[int, Sequence[int]]:
        there = [position(o, index, at, None, wrap=False) if k == d else o.index(i) for k, i in enumerate(at)]
        return src.element(o, at), there

    return _stored_wide(lw, x, index.shape, points, mode, (index, src))


@lowering("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(
    lw: Lowering, x: TensorExpr, indices: Sequence[TensorExpr | None], values: TensorExpr, accumulate: bool = False
) -> TensorExpr | None:
    if any(map(is_mask, indices)):
        return put_at_mask(lw, x, indices, values, accumulate)
    mode = "add" if accumulate else "overwrite"
    given = {d: i for d, i in enumerate(indices) if i is not None}
    if why_not_loop(lw, x, mode) or values.dtype != x.dtype or not given or not all(map(is_index, given.values())):
        return None
    dims = sorted(given)
    if dims[-1] - dims[0] + 1 != len(dims):
        return None  # the dimensions of the indices come first
    common = _common_shape([i.shape for i in given.values()])
    if common is None:
        return None
    shape = (*x.shape[: dims[0]], *common, *x.shape[dims[-1] + 1 :])
    if not broadcasts_to(values.shape, shape):
        return None  # fake kernels accept such values
    for i in given.values():
        lw.realize_for_reuse(i)
    values = _read_in_order(lw, values)
    first, spread = dims[0], len(common)

    def points(o: LoopBuilder, at: Index) -> tuple[int, Sequence[int]]:
        middle, there = at[first : first + spread], [o.index(i) for i in at[:first]]
        for d in dims:
            there.append(position(o, given[d], broadcast_index(middle, given[d].shape), x.shape[d], wrap=True))
        there += [o.index(i) for i in at[first + spread :]]
        return values.element(o, broadcast_index(at, values.shape)), there

    stored = _stored_at if lw.costs.scatters_in_order else _stored_wide
    return stored(lw, x, shape, points, mode, (values, *given.values()))


def _common_shape(shapes: Sequence[Shape]) -> Shape | None:
    """What the shapes broadcast to; None where sizes are not known that differ."""
    if all(shape == shapes[0] for shape in shapes):
        return shapes[0]
    sizes = [[n for n in shape if isinstance(n, int)] for shape in shapes]
    if any(len(known) != len(shape) for known, shape in zip(sizes, shapes, strict=True)):
        return None
    return as_shape(torch.broadcast_shapes(*sizes))


def why_not_loop(lw: Lowering, x: TensorExpr, mode: str) -> str | None:
    """Why ATen should write to positions in `x`, or None."""
    if not lw.costs.scatters_in_order:
        if torch.are_deterministic_algorithms_enabled() or not lw.costs.atomic_adds:
            return "the points of a loop run in any order"
        accumulated = torch.float32 if x.dtype in LOW_FLOATS else x.dtype
        if mode != "overwrite" and (mode != "add" or accumulated not in lw.costs.atomic_adds):
            return f"there is no atomic {mode} of {x.dtype}"
    if x.dtype not in lw.dtypes or (x.storage is not None and x.storage.buffer in lw.foreign):
        return "loops cannot compute it"
    if mode != "overwrite" and x.dtype not in FLOATS | LOW_FLOATS | INTS:
        return f"no arithmetic on {x.dtype}"
    return "nothing to write to" if any(size == 0 for size in x.shape) else None


def _read_in_order(lw: Lowering, x: TensorExpr) -> TensorExpr:
    """Store what is not cheap: the loop that writes is not vectorised."""
    if x.cost > lw.costs.recompute:
        lw.realize(x)
    return x


def _stored_wide(
    lw: Lowering, x: TensorExpr, shape: Shape, points: _Points, mode: str, sources: Sequence[TensorExpr]
) -> TensorExpr:
    """`_stored_at`, but numbers of 16 bits are added up in float32 and rounded once, as eager does it here (not in index_put)."""
    if x.dtype not in LOW_FLOATS or mode != "add":
        return _stored_at(lw, x, shape, points, mode, sources)
    wide = lw.pointwise(lambda o, v: v, [x], torch.float32, shape=x.shape, compute=torch.float32)
    total = _stored_at(lw, wide, shape, points, mode, sources)
    return lw.pointwise(lambda o, v: v, [total], x.dtype, shape=x.shape, compute=torch.float32)


def _stored_at(
    lw: Lowering, x: TensorExpr, shape: Shape, points: _Points, mode: str, sources: Sequence[TensorExpr]
) -> TensorExpr:
    """`x` with a value stored at a position for each index into `shape`; `sources`: what values and positions are computed from."""
    if any(size == 0 for size in shape):
        return x.view(identity(x.shape))
    own, changed = changeable(lw, x)
    for source in sources:
        if source.reads & changed:  # what is written to may not be read meanwhile
            before, copied = source.storage, lw.copy(source).storage
            assert copied is not None
            source.store_in(copied)
            if before is not None:
                lw.live.moved(source, before.buffer)
    positions: list[int] = []

    def element(o: LoopBuilder, index: Index, _: Any) -> int:
        value, there = points(o, index)
        positions.extend(there)
        return value

    nest = record_nest(shape, contiguous(shape), element, {})
    assert nest is not None
    o, buffer = nest.builder, lw.buffers[own.buffer]
    strides, sizes = own.strides, own.shape
    if own.offset != 0:
        positions.append(o.index(own.offset))
        strides, sizes = (*strides, 1), (*sizes, own.offset + 1)
    value = o.cast(nest.value, buffer.dtype)
    o.emit("indirect_store", value, *positions, dtype=buffer.dtype, attr=(buffer.name, strides, sizes, mode))
    origins = {**o.origins, lw.name: None}
    loop = Loop(lw.fresh(f"loop_{buffer.name}"), nest.axes, (), tuple(o.body), tuple(origins))
    lw.steps.append(split_axes(loop))
    return TensorExpr.stored(own, x.dtype)
