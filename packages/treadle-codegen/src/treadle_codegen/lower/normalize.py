"""Softmax and the normalisations: a few reductions with equal outer axes and one elementwise part, which schedule into one kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from treadle_codegen.ir.loops import IntLike
from treadle_codegen.ir.ops import FLOATS, Cost, compute_dtype
from treadle_codegen.lower.context import Lowering
from treadle_codegen.lower.indexing import as_intlike
from treadle_codegen.lower.loop_builder import LoopBuilder
from treadle_codegen.lower.moments import as_float, count_of, lies_across, moments
from treadle_codegen.lower.reduce import extremum
from treadle_codegen.lower.registry import lowering
from treadle_codegen.lower.tensor_expr import TensorExpr, normalize_dim
from treadle_codegen.lower.view import reshape
from treadle_shapes.torch import ElementUse, Kind
from treadle_shapes.torch import operator as operator_record

HARD = int(Cost.TRANSCENDENTAL)


def converted(lw: Lowering, x: TensorExpr, dtype: torch.dtype) -> TensorExpr:
    return x if x.dtype == dtype else lw.pointwise(lambda o, v: v, [x], dtype, shape=x.shape, compute=dtype)


def _only_multiplied(node: torch.fx.Node | None) -> bool:
    """Whether a softmax goes into matrix products only.

    Products with denormal factors take a hundred times as long (masks of -100 make them: 0.05 ms become 4.6 ms for
    Swin's attention), and a factor below 1e-38 does not show in a sum of products. Elsewhere, say under a logarithm, it would.
    """
    return node is not None and all(_multiplies(user) for user in node.users)


def _multiplies(user: torch.fx.Node) -> bool:
    record = operator_record(user.target)
    if record is None:
        return False
    if record.kind is Kind.MATMUL:
        return record.takes_any_strides  # a product of matrices in BLAS; `outer` is a MATMUL that adds nothing up
    return record.element_use is ElementUse.KEPT and _only_multiplied(user)


@lowering("aten._softmax.default")
def softmax(lw: Lowering, x: TensorExpr, dim: int, half_to_float: bool) -> TensorExpr | None:
    dtype = compute_dtype(lw.val.dtype)
    if dtype not in FLOATS:
        return None
    x = lw.realize_for_reuse(converted(lw, x, dtype))
    dims = [normalize_dim(dim, x.dim)] if x.dim else []
    top = extremum(lw, "max", x, dims, True)
    smallest = math.log(torch.finfo(dtype).tiny) if _only_multiplied(lw.node) else None

    def power(o: LoopBuilder, v: int, m: int) -> int:
        gap = o.op("sub", v, m)
        value = o.op("exp", gap)
        return (
            value
            if smallest is None
            else o.op("where", o.op("lt", gap, o.like(smallest, gap)), o.like(0.0, gap), value)
        )

    powers = lw.pointwise(power, [x, top], dtype, shape=x.shape, cost=HARD + 1)
    if powers.cost > lw.costs.recompute:
        lw.realize(powers, x.layout)
    inverse = lw.reduce(
        "sum", powers, dims, keepdim=True, dtype=dtype, accumulate=dtype, after=lambda o, s: o.op("reciprocal", s)
    )
    return lw.pointwise(lambda o, p, s: o.op("mul", p, s), [powers, inverse], lw.val.dtype, shape=x.shape)


@lowering("aten._safe_softmax.default")
def safe_softmax(lw: Lowering, x: TensorExpr, dim: int, dtype: torch.dtype | None = None) -> TensorExpr | None:
    """Softmax that is 0 where a whole row is -inf."""
    if lw.val.dtype not in FLOATS or any(size == 0 for size in x.shape):
        return None
    result_dtype = lw.val.dtype
    x = lw.realize_for_reuse(converted(lw, x, result_dtype))
    dims = [normalize_dim(dim, x.dim)] if x.dim else []
    plain = softmax(lw, x, dim, False)
    top = extremum(lw, "max", x, dims, True)
    assert plain is not None

    def fn(o: LoopBuilder, p: int, m: int) -> int:
        return o.op("where", o.op("eq", m, o.like(-math.inf, m)), o.like(0.0, p), p)

    return lw.pointwise(fn, [plain, top], result_dtype, shape=x.shape, compute=result_dtype, cost=3)


@lowering("aten._log_softmax.default")
def log_softmax(lw: Lowering, x: TensorExpr, dim: int, half_to_float: bool) -> TensorExpr | None:
    dtype = compute_dtype(lw.val.dtype)
    if dtype not in FLOATS:
        return None
    x = lw.realize_for_reuse(converted(lw, x, dtype))
    dims = [normalize_dim(dim, x.dim)] if x.dim else []
    top = extremum(lw, "max", x, dims, True)
    powers = lw.pointwise(lambda o, v, m: o.op("exp", o.op("sub", v, m)), [x, top], dtype, shape=x.shape, cost=HARD + 1)
    log = lw.reduce("sum", powers, dims, keepdim=True, dtype=dtype, accumulate=dtype, after=lambda o, s: o.op("log", s))
    return lw.pointwise(
        lambda o, v, m, s: o.op("sub", o.op("sub", v, m), s), [x, top, log], lw.val.dtype, shape=x.shape
    )


def _moments(
    lw: Lowering, x: TensorExpr, dims: Sequence[int], eps: float, dtype: torch.dtype
) -> tuple[TensorExpr, TensorExpr]:
    """(mean, 1/sqrt(variance + eps)) over `dims`, kept as dimensions of size 1."""
    count = count_of(x, dims)

    def after(o: LoopBuilder, total: int) -> int:
        variance = o.op("div", total, as_float(o, count, dtype))
        return o.op("rsqrt", o.op("add", variance, o.const(eps, dtype)))

    return moments(lw, x, dims, dtype, after)


def _affine(
    lw: Lowering,
    x: TensorExpr,
    mean: TensorExpr,
    rstd: TensorExpr,
    weight: TensorExpr | None,
    bias: TensorExpr | None,
    dtype: torch.dtype,
) -> TensorExpr:
    """(x - mean) * rstd * weight + bias, all broadcast to x's shape."""
    present = [p for p in (weight, bias) if p is not None]

    def fn(o: LoopBuilder, v: int, m: int, r: int, *rest: int) -> int:
        values = list(rest)
        v = o.op("mul", o.op("sub", v, m), r)
        if weight is not None:
            v = o.op("mul", v, values.pop(0))
        return o.op("add", v, values.pop(0)) if bias is not None else v

    return lw.pointwise(fn, [x, mean, rstd, *present], dtype, shape=x.shape, compute=compute_dtype(dtype), cost=4)


def _scaled(
    lw: Lowering,
    x: TensorExpr,
    mean: TensorExpr,
    rstd: TensorExpr,
    weight: TensorExpr | None,
    bias: TensorExpr | None,
    dtype: torch.dtype,
) -> TensorExpr:
    """The same as x * scale + shift, with both stored for each channel: ATen's formula. The loop over x can walk it in any order then."""
    compute = compute_dtype(dtype)
    shape = (*x.shape[:-1], 1)

    def scale_of(o: LoopBuilder, r: int, *w: int) -> int:
        return o.op("mul", r, w[0]) if w else r

    def shift_of(o: LoopBuilder, m: int, s: int, *b: int) -> int:
        moved = o.op("mul", m, s)
        return o.op("sub", b[0], moved) if b else o.op("neg", moved)

    scale = lw.pointwise(scale_of, [rstd, *([] if weight is None else [weight])], compute, shape=shape, compute=compute)
    lw.realize(scale)
    shift = lw.pointwise(
        shift_of, [mean, scale, *([] if bias is None else [bias])], compute, shape=shape, compute=compute
    )
    lw.realize(shift)
    return lw.pointwise(
        lambda o, v, s, t: o.op("add", o.op("mul", v, s), t),
        [x, scale, shift],
        dtype,
        shape=x.shape,
        compute=compute,
        cost=2,
    )


@lowering("aten.native_layer_norm.default")
def native_layer_norm(
    lw: Lowering,
    x: TensorExpr,
    normalized_shape: Sequence[Any],
    weight: TensorExpr | None,
    bias: TensorExpr | None,
    eps: float,
) -> tuple[TensorExpr, TensorExpr, TensorExpr] | None:
    out, mean_val, _ = lw.val
    dtype = compute_dtype(out.dtype)
    if dtype not in FLOATS or any(size == 0 for size in x.shape):
        return None
    dims = list(range(x.dim - len(normalized_shape), x.dim))
    lw.settle_for_moments(x)
    mean, rstd = _moments(lw, x, dims, eps, dtype)
    result = _affine(lw, x, mean, rstd, weight, bias, out.dtype)
    return result, converted(lw, mean, mean_val.dtype), converted(lw, rstd, mean_val.dtype)


@lowering("aten.native_group_norm.default")
def native_group_norm(
    lw: Lowering,
    x: TensorExpr,
    weight: TensorExpr | None,
    bias: TensorExpr | None,
    n: Any,
    c: Any,
    hxw: Any,
    group: int,
    eps: float,
) -> tuple[TensorExpr, TensorExpr, TensorExpr] | None:
    out, mean_val, _ = lw.val
    dtype = compute_dtype(out.dtype)
    if dtype not in FLOATS or any(size == 0 for size in x.shape):
        return None
    channels = as_intlike(c)
    split = (as_intlike(n), group, channels // group, as_intlike(hxw))
    lw.settle_for_moments(x)
    grouped = x.view(reshape(x.shape, split))
    mean, rstd = _moments(lw, grouped, [2, 3], eps, dtype)

    def per_channel(p: TensorExpr | None) -> TensorExpr | None:
        return None if p is None else p.view(reshape(p.shape, (1, group, channels // group, 1)))

    affine = _scaled if lw.costs.moments_across and lies_across(grouped, [2, 3]) else _affine
    result = affine(lw, grouped, mean, rstd, per_channel(weight), per_channel(bias), out.dtype)
    flat = [converted(lw, p.view(reshape(p.shape, (split[0], group))), mean_val.dtype) for p in (mean, rstd)]
    return result.view(reshape(split, x.shape)), flat[0], flat[1]


@lowering("aten._fused_rms_norm.default")
def fused_rms_norm(
    lw: Lowering, x: TensorExpr, normalized_shape: Sequence[Any], weight: TensorExpr | None, eps: float | None
) -> tuple[TensorExpr, TensorExpr] | None:
    out, rstd_val = lw.val
    dtype = compute_dtype(out.dtype)
    if dtype not in FLOATS or eps is None or any(size == 0 for size in x.shape):
        return None
    dims = list(range(x.dim - len(normalized_shape), x.dim))
    lw.realize_for_reuse(x)
    count: IntLike = count_of(x, dims)

    def after(o: LoopBuilder, total: int) -> int:
        return o.op("rsqrt", o.op("add", o.op("div", total, as_float(o, count, dtype)), o.const(eps, dtype)))

    rstd = lw.reduce(
        "sum",
        x,
        dims,
        keepdim=True,
        dtype=dtype,
        accumulate=dtype,
        before=lambda o, v, _: o.op("mul", v, v),
        after=after,
    )
    optional = [] if weight is None else [weight]

    def fn(o: LoopBuilder, v: int, r: int, *rest: int) -> int:
        v = o.op("mul", v, r)
        return o.op("mul", v, rest[0]) if rest else v

    result = lw.pointwise(fn, [x, rstd, *optional], out.dtype, shape=x.shape, compute=dtype, cost=2)
    return result, converted(lw, rstd, rstd_val.dtype)
