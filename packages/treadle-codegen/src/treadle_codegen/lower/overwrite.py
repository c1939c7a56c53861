"""Writes to parts of tensors: `y[a:b] = x` and its relatives, which functionalisation has made functions of a whole tensor.

    y1 = slice_scatter(y, x, 0, a, b)     y is needed no more: a loop stores x into the memory of y, which is y1 from then on
                                          y is needed later:   the same in a copy of y
                                          y is not stored, and this is its only write: one loop that takes each element from x or y

A part of a part comes as nested calls, s1 = select_scatter(slice(y), x), y1 = slice_scatter(y, s1). The inner result remembers
(`TensorExpr.patch`) that it is a part of y except where x stands, and only x is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from treadle_codegen.ir.loops import BufferKind, IntLike, View
from treadle_codegen.ir.ops import compute_dtype
from treadle_codegen.ir.overlap import loads_of, may_meet
from treadle_codegen.lower.context import Lowering
from treadle_codegen.lower.indexing import as_shape, is_dense, linear, product, same_strides
from treadle_codegen.lower.loop_builder import LoopBuilder
from treadle_codegen.lower.nest import Nest, record_nest
from treadle_codegen.lower.registry import lowering
from treadle_codegen.lower.tensor_expr import Index, Patch, TensorExpr, ViewMap, normalize_dim
from treadle_codegen.lower.view import clamped_start, diagonal_map, identity, insert, select, slice_of
from treadle_shapes.expr import And, Ge, Lt, where
from treadle_shapes.torch import operator as operator_record


@lowering("aten.slice_scatter.default")
def slice_scatter(
    lw: Lowering, x: TensorExpr, src: TensorExpr, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> TensorExpr | None:
    d = normalize_dim(dim, x.dim)
    first = clamped_start(x.shape[d], start)
    if first is None:
        return None
    if src.shape == x.shape:
        return src.view(identity(src.shape)) if src.dtype == x.dtype else None
    region = slice_of(x.shape, d, first, src.shape[d], step)
    return _written(lw, x, region, src, (d, first) if step == 1 else None)


@lowering("aten.select_scatter.default")
def select_scatter(lw: Lowering, x: TensorExpr, src: TensorExpr, dim: int, index: Any) -> TensorExpr | None:
    d = normalize_dim(dim, x.dim)
    (at,) = as_shape([index])
    at = where(Lt(at, 0), x.shape[d] + at, at)
    return _written(lw, x, select(x.shape, d, at), src, (d, at))


@lowering("aten.diagonal_scatter.default")
def diagonal_scatter(
    lw: Lowering, x: TensorExpr, src: TensorExpr, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> TensorExpr | None:
    a, b = normalize_dim(dim1, x.dim), normalize_dim(dim2, x.dim)
    return _written(lw, x, diagonal_map(x.shape, offset, a, b, src.shape[-1]), src, None)


def _written(
    lw: Lowering, x: TensorExpr, region: ViewMap, src: TensorExpr, along: tuple[int, IntLike] | None
) -> TensorExpr | None:
    """`x` with `src` in its part `region`, which along one dimension begins at a position (`along`), or is of another form."""
    if src.dtype != x.dtype:
        return None
    if any(size == 0 for size in (*src.shape, *x.shape)):
        return x.view(identity(x.shape))
    if along is not None and _is_part_of_write(lw):
        return _inner(lw, x, region, src, along)
    if along is not None and why_not_fused(lw, x, src) is None:
        return _chosen(lw, x, src, *along)
    return _stored_over(lw, x, region, src)


# -- one loop over the whole tensor ------------------------------------------------------------------------------------


def why_not_fused(lw: Lowering, x: TensorExpr, src: TensorExpr) -> str | None:
    """Why the whole tensor should not be computed anew from `x` and `src`."""
    assert lw.node is not None
    if "mutates" in lw.node.meta:
        return "it is an input, of which only the part changes"
    if src.patch is not None:
        return "a part of a part: two conditions for each element"
    if x.storage is not None and lw.buffers[x.storage.buffer].kind is BufferKind.TEMP:
        return "it is in memory"
    if x.cost > lw.costs.recompute:
        return "it is stored in any case"
    if any(_is_write_to(user, lw.node) for user in _readers(lw.node)):
        return "it is written again"
    return None


def _is_write_to(user: torch.fx.Node, node: torch.fx.Node) -> bool:
    """Whether a node replaces a part of another one's value."""
    record = operator_record(user.target) if user.op == "call_function" else None
    return record is not None and record.replaces_part and user.args[0] is node


def _readers(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes that use a value, views of it included."""
    found: list[torch.fx.Node] = []
    for user in node.users:
        record = operator_record(user.target) if user.op == "call_function" else None
        found.append(user)
        if record is not None and record.is_strided_view:
            found += _readers(user)
    return found


def _chosen(lw: Lowering, x: TensorExpr, src: TensorExpr, d: int, start: IntLike) -> TensorExpr:
    """`x` with the elements from `start` on in dimension `d` taken from `src`, in which the dimension may be missing."""
    if src.dim < x.dim:
        src = src.view(insert(src.shape, d))
    if src.cost > 2:
        lw.realize(src)
    dtype = compute_dtype(x.dtype)

    def element(o: LoopBuilder, index: Index) -> int:
        at = (*index[:d], index[d] - start, *index[d + 1 :])
        old = x.element(o, index)
        inside = And(Ge(at[d], 0), Lt(at[d], src.shape[d]))
        if inside is True:
            return o.cast(src.element(o, at), dtype)
        with o.mask(inside):
            new = o.cast(src.element(o, at), dtype)
        return o.op("where", holds(o, src, at, [d]), new, old)

    return TensorExpr.computed(x.shape, x.dtype, element, x.cost + src.cost + 3, x.reads | src.reads)


def holds(o: LoopBuilder, x: TensorExpr, at: Index, dims: Sequence[int]) -> int:
    """Whether the index is inside of `x` in `dims`, as a bool scalar."""
    result = None
    for d in dims:
        position = o.index(at[d])
        low = o.op("ge", position, o.const(0, torch.int64))
        high = o.op("lt", position, o.index(x.shape[d]))
        both = o.op("bitwise_and", low, high)
        result = both if result is None else o.op("bitwise_and", result, both)
    assert result is not None
    return result


# -- a part of a part --------------------------------------------------------------------------------------------------


def _is_part_of_write(lw: Lowering) -> bool:
    """Whether the result is used once, as what is written into another tensor."""
    node = lw.node
    while node is not None and len(node.users) == 1:
        (user,) = node.users
        record = operator_record(user.target) if user.op == "call_function" else None
        if record is not None and record.replaces_part:
            return len(user.args) > 1 and user.args[1] is node
        if record is None or not record.is_strided_view:
            return False
        node = user
    return False


def _inner(lw: Lowering, x: TensorExpr, region: ViewMap, src: TensorExpr, along: tuple[int, IntLike]) -> TensorExpr:
    if x.storage is None and x.base is not None:
        lw.realize(_root(x))
    old = x.storage
    part = None if old is None else region.strided(old)
    result = _chosen(lw, x, src, *along)
    if old is not None and part is not None:
        inner = src.patch
        if inner is None:
            result.patch = Patch(old, part, src)
        elif _same_view(inner.old, part):
            result.patch = replace(inner, old=old)
    return result


def _root(x: TensorExpr) -> TensorExpr:
    while x.base is not None:
        x = x.base
    return x


def _same_view(a: View, b: View) -> bool:
    return (a.buffer, a.shape, a.offset) == (b.buffer, b.shape, b.offset) and same_strides(
        a.shape, a.strides, b.strides
    )


# -- in memory ---------------------------------------------------------------------------------------------------------


def _stored_over(lw: Lowering, x: TensorExpr, region: ViewMap, src: TensorExpr) -> TensorExpr | None:
    """Store `src` into the memory of `x` if nothing else needs that, else into a copy."""
    before = x.storage
    whole = None if before is None else region.strided(before)
    if before is not None and whole is not None and src.storage is not None and _same_view(src.storage, whole):
        return x.view(identity(x.shape))  # y[a:b] = y[a:b], with which Python ends y[a:b] += x
    patched = src.patch is not None and src.storage is None and whole is not None and _same_view(src.patch.old, whole)
    own, changed = changeable(lw, x)
    patched = patched and before is not None and same_strides(x.shape, own.strides, before.strides)
    target = region.strided(own)
    assert target is not None
    if patched:
        assert src.patch is not None and before is not None
        part = src.patch.part
        target = replace(part, buffer=own.buffer, offset=part.offset - before.offset + own.offset)
        src = src.patch.source
    _store(lw, target, src, changed)
    return TensorExpr.stored(own, x.dtype)


def changeable(lw: Lowering, x: TensorExpr) -> tuple[View, set[str]]:
    """Memory with the value of `x` that may be written over, a copy where `x` is needed later; and the buffers that change with it."""
    updated, before = _updated_input(lw, x), x.storage
    own = _own_memory(lw, x)
    if own is None:
        if updated is not None:
            _settle_readers(lw, updated)
        kept = before is not None and (updated is not None or is_dense(x.shape, before.strides))
        layout = before.strides if before is not None and kept else x.layout
        own = lw.copy(x, layout, mode=None if updated is None else "overwrite").storage
        assert own is not None
    return own, {own.buffer} | ({updated} if updated is not None else set())


def _store(lw: Lowering, target: View, src: TensorExpr, memory: set[str]) -> None:
    """A loop that stores `src` in `target`; `memory` are the names of what it writes over."""
    nest = _recorded(target, src)
    if nest is not None and _reads_what_it_writes(nest, target, memory):
        nest = _recorded(target, lw.copy(src))
    lw.overwrite(target, nest)


def _recorded(target: View, src: TensorExpr) -> Nest | None:
    return record_nest(target.shape, target.strides, lambda o, index, _: src.element(o, index), {})


def _reads_what_it_writes(nest: Nest, target: View, memory: set[str]) -> bool:
    store = linear(nest.index, target.strides, target.offset)
    loads = [load for name in memory for load in loads_of(nest.builder.body, name)]
    return any(may_meet(load, store, nest.axes) for load in loads)


def _own_memory(lw: Lowering, x: TensorExpr) -> View | None:
    """The memory of `x` if it may be written over. Values that still read it are stored elsewhere first, if that takes no more memory."""
    view = x.storage
    if view is None or lw.buffers[view.buffer].kind is not BufferKind.TEMP or not is_dense(x.shape, view.strides):
        return None
    if lw.buffers[view.buffer].opaque:
        return None
    readers = _readers_of(lw, view.buffer)
    if any(reader.storage is not None for reader in readers) or not _fits(readers, lw.buffers[view.buffer].shape):
        return None
    for reader in readers:
        lw.realize(reader)
    return view


def _readers_of(lw: Lowering, buffer: str) -> list[TensorExpr]:
    """The values needed later that are read from a buffer."""
    assert lw.node is not None
    return lw.live.readers_behind(lw.node, buffer)


def _fits(readers: Sequence[TensorExpr], shape: Sequence[IntLike]) -> bool:
    total: IntLike = 0
    for reader in readers:
        total = total + product(reader.shape)
    room = product(shape)
    return not readers or (isinstance(total, int) and isinstance(room, int) and total <= room)


def _updated_input(lw: Lowering, x: TensorExpr) -> str | None:
    """The input that `x` is, whole, if what comes of this write is the input's new value."""
    view, node = x.storage, lw.node
    if view is None or lw.buffers[view.buffer].kind not in (BufferKind.INPUT, BufferKind.STATIC):
        return None
    buffer = lw.buffers[view.buffer]
    if view.shape != buffer.shape or view.strides != buffer.strides or view.offset != buffer.offset:
        return None
    while node is not None and "mutates" not in node.meta:
        node = next((user for user in node.users if _is_write_to(user, node)), None)
    return view.buffer if node is not None else None


def _settle_readers(lw: Lowering, buffer: str) -> None:
    """Store what still reads an input that is about to be written over, so that it can be."""
    readers = [x for x in _readers_of(lw, buffer) if x.storage is None]
    if _fits(readers, lw.buffers[buffer].shape):
        for reader in readers:
            lw.realize(reader)
