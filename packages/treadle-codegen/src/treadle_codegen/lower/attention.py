"""Attention as one loop (`ir.attention`), of two calls that a target's rewrite makes of matrix products and the softmax between them.

    s = scores(q, k)        q: [b, m, e], k: [b, e, n]        a value that nobody stores: the loop of `attend` computes it
    y = attend(f(s), v)     f(s): [*, m, n], v: [*, n, d]     y: [*, m, d]

`f` is what happens to the scores point by point. Where another loop needs them after all, ATen computes the product.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from treadle_codegen.ir.attention import why_not_attention
from treadle_codegen.ir.loops import Axis, Extern, IntLike, Load, Loop, View
from treadle_codegen.ir.ops import compute_dtype
from treadle_codegen.lower.context import Lowering, view_of
from treadle_codegen.lower.indexing import as_shape, axis_symbol, contiguous, linear, product
from treadle_codegen.lower.loop_builder import LoopBuilder
from treadle_codegen.lower.nest import record_nest
from treadle_codegen.lower.normalize import converted, safe_softmax, softmax
from treadle_codegen.lower.registry import lowering
from treadle_codegen.lower.tensor_expr import Index, TensorExpr
from treadle_codegen.lower.view import reshape

_KEYS = 0


@lowering("treadle_codegen.scores.default")
def scores(lw: Lowering, query: TensorExpr, key: TensorExpr, dtype: torch.dtype) -> TensorExpr:
    left, right = lw.realize(query), lw.realize(key)
    shape = as_shape(lw.val.shape)
    made: TensorExpr

    def element(o: LoopBuilder, index: Index) -> int:
        b, m, n = index
        if o.terms is None:
            _store_product(lw, made, query, key)
            return made.element(o, index)
        a = o.emit(
            "load", dtype=query.dtype, attr=Load(left.buffer, linear((b, m, o.terms), left.strides, left.offset))
        )
        c = o.emit(
            "load", dtype=key.dtype, attr=Load(right.buffer, linear((b, o.terms, n), right.strides, right.offset))
        )
        return o.cast(o.emit("inner_dot", a, c, dtype=torch.float32), compute_dtype(dtype))

    made = TensorExpr.computed(shape, dtype, element, 0)
    made.in_registers = True
    return made


def _store_product(lw: Lowering, scores: TensorExpr, query: TensorExpr, key: TensorExpr) -> None:
    """Have ATen compute the scores, before the loop that is being recorded."""
    if scores.storage is None:
        factors = [converted(lw, x, scores.dtype) for x in (query, key)]
        scores.store_in(_product(lw, factors[0], factors[1], scores.dtype))
        scores.in_registers = False


def _product(lw: Lowering, left: TensorExpr, right: TensorExpr, dtype: torch.dtype) -> View:
    """The product of two batches of matrices, which ATen computes."""
    factors = (lw.realize(left), lw.realize(right))
    out = lw.new_buffer((*left.shape[:-1], right.shape[-1]), dtype)
    op, name = torch.ops.aten.bmm.out, lw.fresh(f"extern_{out.name}")
    lw.steps.append(Extern(name, op, factors, {}, (out.name,), out_variant=True, origins=(lw.name,)))
    return view_of(out)


@lowering("treadle_codegen.attend.default")
def attend(lw: Lowering, scores: TensorExpr, value: TensorExpr, terms: IntLike, is_safe: bool) -> TensorExpr | None:
    view = lw.realize(value)
    shape, kind = as_shape(lw.val.shape), "safe_softmax_dot" if is_safe else "softmax_dot"
    inner = Axis(axis_symbol("t0", terms), terms)

    def element(o: LoopBuilder, index: Index, reduced: dict[int, IntLike]) -> int:
        o.terms = inner.symbol
        *batch, row, column = index
        weight = o.cast(scores.element(o, (*batch, row, reduced[_KEYS])), torch.float32)
        place = linear((*batch, reduced[_KEYS], column), view.strides, view.offset)
        return o.dot(kind, weight, o.emit("load", dtype=value.dtype, attr=Load(view.buffer, place)))

    strides = lw._hint(shape) or contiguous(shape)
    nest = record_nest(shape, strides, element, {_KEYS: value.shape[-2]})
    if nest is None:
        return lw.full(shape, 0, lw.val.dtype)
    o, axes = nest.builder, (*nest.reduce_axes, inner)
    loop = Loop("attention", nest.axes, axes, tuple(o.body), ())
    if why_not_attention(loop) is not None:
        return _in_steps(lw, scores, value, is_safe=is_safe)
    out = lw.new_buffer(shape, lw.val.dtype, strides)
    o.store(out.name, linear(nest.index, out.strides, 0), nest.value, out.dtype)
    origins = tuple({**o.origins, lw.name: None})
    lw.steps.append(replace(loop, name=lw.fresh(f"loop_{out.name}"), body=tuple(o.body), origins=origins))
    return TensorExpr.stored(view_of(out), out.dtype)


def _in_steps(lw: Lowering, scores: TensorExpr, value: TensorExpr, *, is_safe: bool) -> TensorExpr:
    """With the weights in memory, which ATen multiplies by the values."""
    result = lw.val
    lw.val = result.to(torch.float32)
    weights = safe_softmax(lw, scores, -1) if is_safe else softmax(lw, scores, -1, False)
    lw.val = result
    assert weights is not None
    weights = converted(lw, weights, value.dtype)
    left, right = [x.view(reshape(x.shape, (product(x.shape[:-2]), *x.shape[-2:]))) for x in (weights, value)]
    found = TensorExpr.stored(_product(lw, left, right, value.dtype), value.dtype)
    return found.view(reshape(found.shape, (*weights.shape[:-1], value.shape[-1])))
