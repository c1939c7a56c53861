"""Reads at positions that are data: embedding, gather, index_select and indexing by integer tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from treadle_codegen.ir.loops import View
from treadle_codegen.lower.context import Lowering
from treadle_codegen.lower.indexing import as_shape, broadcast_index, product
from treadle_codegen.lower.indirect import element_at, why_not_indirect
from treadle_codegen.lower.loop_builder import LoopBuilder
from treadle_codegen.lower.registry import lowering
from treadle_codegen.lower.tensor_expr import NOTHING, Index, TensorExpr, normalize_dim


def _gather_cost(lw: Lowering) -> int:
    """Above the limit for recomputation: an indirect read is never repeated, nor evaluated under a mask."""
    return 2 * lw.costs.recompute


def _stored(lw: Lowering, x: TensorExpr) -> View:
    """Memory of `x` starting at its buffer's first element."""
    view = lw.realize(x)
    if view.offset != 0:
        copied = lw.copy(x).storage
        assert copied is not None
        return copied
    return view


def _read(o: LoopBuilder, view: View, indices: Sequence[int], dtype: torch.dtype) -> int:
    return o.indirect_load(view.buffer, view.strides, view.shape, tuple(indices), dtype)


def position(o: LoopBuilder, index: TensorExpr, at: Index, size: Any, wrap: bool) -> int:
    """A position read from an index tensor; negative ones count from the end where eager allows it."""
    value = o.cast(index.element(o, at), torch.int64)
    if not wrap:
        return value
    wrapped = o.op("add", value, o.index(size))
    return o.op("where", o.op("lt", value, o.const(0, torch.int64)), wrapped, value)


def is_index(x: Any) -> bool:
    """Whether a tensor holds positions of a dtype that ATen takes."""
    return isinstance(x, TensorExpr) and x.dtype in (torch.int64, torch.int32)


def _reads(view: View, indices: Sequence[TensorExpr]) -> frozenset[str]:
    return NOTHING.union((view.buffer,), *(x.reads for x in indices))


@lowering("aten.embedding.default")
def embedding(
    lw: Lowering,
    weight: TensorExpr,
    indices: TensorExpr,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> TensorExpr | None:
    if not is_index(indices):
        return None
    view = _stored(lw, weight)
    lw.realize_for_reuse(indices)

    def element(o: LoopBuilder, index: Index) -> int:
        row = position(o, indices, index[:-1], None, wrap=False)
        return _read(o, view, (row, o.index(index[-1])), weight.dtype)

    return TensorExpr.computed(as_shape(lw.val.shape), weight.dtype, element, _gather_cost(lw), _reads(view, [indices]))


@lowering("aten.gather.default")
def gather(lw: Lowering, x: TensorExpr, dim: int, index: TensorExpr, *, sparse_grad: bool = False) -> TensorExpr | None:
    if not is_index(index) or x.dim == 0 or index.dim == 0:
        return None
    d = normalize_dim(dim, x.dim)
    if why_not_indirect(lw, x, d, product(index.shape)) is None:

        def computed(o: LoopBuilder, at: Index) -> int:
            return element_at(lw, o, x, at, d, position(o, index, at, None, wrap=False))

        return TensorExpr.computed(index.shape, x.dtype, computed, _gather_cost(lw) + x.cost, x.reads | index.reads)
    view = _stored(lw, x)

    def element(o: LoopBuilder, at: Index) -> int:
        positions = [position(o, index, at, None, wrap=False) if k == d else o.index(i) for k, i in enumerate(at)]
        return _read(o, view, positions, x.dtype)

    return TensorExpr.computed(index.shape, x.dtype, element, _gather_cost(lw), _reads(view, [index]))


@lowering("aten.index_select.default")
def index_select(lw: Lowering, x: TensorExpr, dim: int, index: TensorExpr) -> TensorExpr | None:
    if not is_index(index) or x.dim == 0 or index.dim != 1:
        return None
    d = normalize_dim(dim, x.dim)
    view = _stored(lw, x)

    def element(o: LoopBuilder, at: Index) -> int:
        positions = [position(o, index, (i,), None, wrap=False) if k == d else o.index(i) for k, i in enumerate(at)]
        return _read(o, view, positions, x.dtype)

    return TensorExpr.computed(as_shape(lw.val.shape), x.dtype, element, _gather_cost(lw), _reads(view, [index]))


@lowering("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index_tensor(lw: Lowering, x: TensorExpr, indices: Sequence[TensorExpr | None]) -> TensorExpr | None:
    given = {d: i for d, i in enumerate(indices) if i is not None}
    if not given or not all(is_index(i) for i in given.values()) or any(size == 0 for size in x.shape):
        return None
    dims = sorted(given)
    shape = as_shape(lw.val.shape)
    rest = [d for d in range(x.dim) if d not in given]
    spread = len(shape) - len(rest)  # dimensions of the broadcast index tensors
    adjacent = dims[-1] - dims[0] + 1 == len(dims)
    first = len([d for d in rest if d < dims[0]]) if adjacent else 0
    view = _stored(lw, x)
    for i in given.values():
        lw.realize_for_reuse(i)

    def element(o: LoopBuilder, at: Index) -> int:
        common = at[first : first + spread]
        others = iter((*at[:first], *at[first + spread :]))
        positions = []
        for d in range(x.dim):
            if d in given:
                tensor = given[d]
                positions.append(position(o, tensor, broadcast_index(common, tensor.shape), x.shape[d], wrap=True))
            else:
                positions.append(o.index(next(others)))
        return _read(o, view, positions, x.dtype)

    return TensorExpr.computed(shape, x.dtype, element, _gather_cost(lw), _reads(view, list(given.values())))
