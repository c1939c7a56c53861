"""Reductions: sums, products, extrema and what is made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from treadle_codegen.ir.ops import FLOATS, LOW_FLOATS, compute_dtype
from treadle_codegen.lower.context import Lowering
from treadle_codegen.lower.loop_builder import LoopBuilder
from treadle_codegen.lower.moments import as_float, count_of, mean_of, moments
from treadle_codegen.lower.registry import lowering
from treadle_codegen.lower.tensor_expr import TensorExpr, normalize_dim, normalize_dims
from treadle_codegen.lower.view import select


@lowering("aten.sum.default", "aten.sum.dim_IntList")
def sum_(
    lw: Lowering, x: TensorExpr, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> TensorExpr | None:
    result = lw.val.dtype
    if result == torch.bool:
        return None
    dims = normalize_dims(dim, x.dim)
    return lw.reduce("sum", x, dims, keepdim=keepdim, dtype=result, accumulate=compute_dtype(result))


@lowering("aten.mean.default", "aten.mean.dim")
def mean(
    lw: Lowering, x: TensorExpr, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> TensorExpr:
    return mean_of(lw, x, normalize_dims(dim, x.dim), keepdim, lw.val.dtype)


@lowering("aten.prod.default", "aten.prod.dim_int")
def prod(
    lw: Lowering, x: TensorExpr, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> TensorExpr | None:
    result = lw.val.dtype
    if result == torch.bool:
        return None
    dims = normalize_dims(dim, x.dim)
    return lw.reduce("prod", x, dims, keepdim=keepdim, dtype=result, accumulate=compute_dtype(result))


def extremum(lw: Lowering, kind: str, x: TensorExpr, dims: Sequence[int], keepdim: bool) -> TensorExpr:
    """Stored maximum or minimum; on bool they are any and all."""
    if x.dtype == torch.bool:
        kind = {"max": "any", "min": "all"}[kind]
    return lw.reduce(kind, x, dims, keepdim=keepdim, dtype=x.dtype, accumulate=compute_dtype(x.dtype))


@lowering("aten.amax.default")
def amax(lw: Lowering, x: TensorExpr, dim: Any = (), keepdim: bool = False) -> TensorExpr:
    return _amextremum(lw, "max", x, dim, keepdim)


@lowering("aten.amin.default")
def amin(lw: Lowering, x: TensorExpr, dim: Any = (), keepdim: bool = False) -> TensorExpr:
    return _amextremum(lw, "min", x, dim, keepdim)


def _amextremum(lw: Lowering, kind: str, x: TensorExpr, dim: Any, keepdim: bool) -> TensorExpr:
    dims = normalize_dims(dim, x.dim)
    lw.require_elements(f"a{kind}", x, dims)
    return extremum(lw, kind, x, dims, keepdim)


@lowering("aten.max.default")
def max_all(lw: Lowering, x: TensorExpr) -> TensorExpr:
    lw.require_elements("max", x, range(x.dim), whole=True)
    return extremum(lw, "max", x, range(x.dim), False)


@lowering("aten.min.default")
def min_all(lw: Lowering, x: TensorExpr) -> TensorExpr:
    lw.require_elements("min", x, range(x.dim), whole=True)
    return extremum(lw, "min", x, range(x.dim), False)


def _with_positions(
    lw: Lowering, kind: str, x: TensorExpr, dim: int, keepdim: bool
) -> tuple[TensorExpr, TensorExpr] | None:
    if x.dtype == torch.bool:
        return None
    dims = [normalize_dim(dim, x.dim)] if x.dim else []
    lw.require_elements(kind, x, dims)
    lw.realize_for_reuse(x)
    return extremum(lw, kind, x, dims, keepdim), position(lw, kind, x, dims, keepdim)


def position(lw: Lowering, kind: str, x: TensorExpr, dims: Sequence[int], keepdim: bool) -> TensorExpr:
    """Stored row-major position of the first extremum among `dims`."""
    return lw.reduce(f"arg{kind}", x, dims, keepdim=keepdim, dtype=torch.int64, accumulate=compute_dtype(x.dtype))


@lowering("aten.max.dim")
def max_dim(lw: Lowering, x: TensorExpr, dim: int, keepdim: bool = False) -> tuple[TensorExpr, TensorExpr] | None:
    return _with_positions(lw, "max", x, dim, keepdim)


@lowering("aten.min.dim")
def min_dim(lw: Lowering, x: TensorExpr, dim: int, keepdim: bool = False) -> tuple[TensorExpr, TensorExpr] | None:
    return _with_positions(lw, "min", x, dim, keepdim)


def _arg(lw: Lowering, kind: str, x: TensorExpr, dim: int | None, keepdim: bool) -> TensorExpr | None:
    if x.dtype == torch.bool:
        return None
    dims = normalize_dims(dim, x.dim)
    lw.require_elements(f"arg{kind}", x, dims, whole=dim is None)
    return position(lw, kind, x, dims, keepdim)


@lowering("aten.aminmax.default")
def aminmax(
    lw: Lowering, x: TensorExpr, *, dim: int | None = None, keepdim: bool = False
) -> tuple[TensorExpr, TensorExpr]:
    dims = normalize_dims(dim, x.dim)
    lw.require_elements("aminmax", x, dims)
    lw.realize_for_reuse(x)
    return extremum(lw, "min", x, dims, keepdim), extremum(lw, "max", x, dims, keepdim)


@lowering("aten.count_nonzero.default", "aten.count_nonzero.dim_IntList")
def count_nonzero(lw: Lowering, x: TensorExpr, dim: Any = None) -> TensorExpr:
    dims = normalize_dims(dim, x.dim)
    truth = lw.pointwise(lambda o, v: o.cast(v, torch.bool), [x], torch.bool, shape=x.shape)
    return lw.reduce("sum", truth, dims, dtype=torch.int64, accumulate=torch.int64)


@lowering("aten.argmax.default")
def argmax(lw: Lowering, x: TensorExpr, dim: int | None = None, keepdim: bool = False) -> TensorExpr | None:
    return _arg(lw, "max", x, dim, keepdim)


@lowering("aten.argmin.default")
def argmin(lw: Lowering, x: TensorExpr, dim: int | None = None, keepdim: bool = False) -> TensorExpr | None:
    return _arg(lw, "min", x, dim, keepdim)


@lowering("aten.any.default", "aten.any.dim", "aten.any.dims")
def any_(lw: Lowering, x: TensorExpr, dim: Any = None, keepdim: bool = False) -> TensorExpr:
    return _truth(lw, "any", x, dim, keepdim)


@lowering("aten.all.default", "aten.all.dim", "aten.all.dims")
def all_(lw: Lowering, x: TensorExpr, dim: Any = None, keepdim: bool = False) -> TensorExpr:
    return _truth(lw, "all", x, dim, keepdim)


def _truth(lw: Lowering, kind: str, x: TensorExpr, dim: Any, keepdim: bool) -> TensorExpr:
    if isinstance(dim, (list, tuple)) and not dim:  # no dimensions: the truth of each element
        truth = lw.pointwise(lambda o, v: o.cast(v, torch.bool), [x], torch.bool, shape=x.shape)
        return lw.pointwise(lambda o, v: v, [truth], lw.val.dtype, shape=x.shape)
    dims = normalize_dims(dim, x.dim)
    return lw.reduce(kind, x, dims, keepdim=keepdim, dtype=lw.val.dtype, accumulate=torch.bool)


# -- variance ----------------------------------------------------------------------------------------------------------


def _variance(
    lw: Lowering, x: TensorExpr, dim: Any, correction: Any, keepdim: bool, root: bool, dtype: torch.dtype
) -> tuple[TensorExpr, TensorExpr] | None:
    """(variance or its root, mean) of stored `x`."""
    if x.dtype not in FLOATS | LOW_FLOATS:
        return None
    dims = normalize_dims(dim, x.dim)
    count = count_of(x, dims)
    lw.realize_for_reuse(x)
    squares_fit = not lw.costs.wide_moments or dtype == torch.float16
    accumulate = compute_dtype(dtype) if squares_fit else torch.float64
    off = 1 if correction is None else correction

    def after(o: LoopBuilder, total: int) -> int:
        if isinstance(count, int):
            divisor = o.const(max(count - off, 0.0), accumulate)
        else:
            divisor = o.op("sub", as_float(o, count, accumulate), o.const(off, accumulate))
            divisor = o.op("maximum", divisor, o.const(0.0, accumulate))
        value = o.op("div", total, divisor)
        return o.op("sqrt", value) if root else value

    mean, spread = moments(lw, x, dims, accumulate, after)
    if dtype != accumulate:
        spread, mean = [lw.pointwise(lambda o, v: v, [m], dtype, shape=m.shape) for m in (spread, mean)]
    if keepdim:
        return spread, mean
    return _without(spread, dims), _without(mean, dims)


def _without(x: TensorExpr, dims: Sequence[int]) -> TensorExpr:
    for d in sorted(dims, reverse=True):
        x = x.view(select(x.shape, d, 0))
    return x


@lowering("aten.var.correction", "aten.var.dim", "aten.var.default")
def var(
    lw: Lowering, x: TensorExpr, dim: Any = None, *args: Any, correction: Any = None, keepdim: bool = False
) -> TensorExpr | None:
    if args or isinstance(dim, bool):
        return None  # the older overloads with `unbiased`
    both = _variance(lw, x, dim, correction, keepdim, False, lw.val.dtype)
    return None if both is None else both[0]


@lowering("aten.std.correction")
def std(
    lw: Lowering, x: TensorExpr, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> TensorExpr | None:
    both = _variance(lw, x, dim, correction, keepdim, True, lw.val.dtype)
    return None if both is None else both[0]


@lowering("aten.var_mean.correction")
def var_mean(lw: Lowering, x: TensorExpr, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return _variance(lw, x, dim, correction, keepdim, False, lw.val[0].dtype)


@lowering("aten.std_mean.correction")
def std_mean(lw: Lowering, x: TensorExpr, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return _variance(lw, x, dim, correction, keepdim, True, lw.val[0].dtype)


# -- norms and logsumexp -----------------------------------------------------------------------------------------------


@lowering("aten.logsumexp.default")
def logsumexp(lw: Lowering, x: TensorExpr, dim: Any, keepdim: bool = False) -> TensorExpr | None:
    if x.dtype not in FLOATS or any(size == 0 for size in x.shape):
        return None
    if isinstance(dim, (list, tuple)) and not dim and x.dim and not keepdim:
        return None  # eager raises, though its meta kernel gives sizes
    dims = normalize_dims(dim, x.dim)
    lw.realize_for_reuse(x)
    top = extremum(lw, "max", x, dims, True)

    def finite(o: LoopBuilder, value: int) -> int:
        return o.op("where", o.op("isinf", value), o.like(0.0, value), value)

    shift = lw.pointwise(finite, [top], x.dtype, shape=top.shape, compute=x.dtype)
    powers = lw.pointwise(
        lambda o, v, m: o.op("exp", o.op("sub", v, m)), [x, shift], x.dtype, shape=x.shape, compute=x.dtype
    )
    total = lw.reduce("sum", powers, dims, keepdim=True, dtype=x.dtype, accumulate=x.dtype)
    result = lw.pointwise(
        lambda o, s, m: o.op("add", o.op("log", s), m),
        [total, shift],
        x.dtype,
        shape=total.shape,
        compute=x.dtype,
        cost=13,
    )
    return result if keepdim else _without(result, dims)


@lowering("aten.linalg_vector_norm.default")
def vector_norm(
    lw: Lowering,
    x: TensorExpr,
    ord: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> TensorExpr | None:
    result = lw.val.dtype
    accumulate = compute_dtype(result)
    dims = normalize_dims(dim, x.dim)
    # Of one element, ATen takes the absolute value. That of 1e38 or 1e-30 has no square.
    order = 1 if ord != 0 and all(x.shape[d] == 1 for d in dims) else ord
    if accumulate not in FLOATS or order not in (1, 2, math.inf, -math.inf) or any(size == 0 for size in x.shape):
        return None
    kind = {1: "sum", 2: "sum", math.inf: "max", -math.inf: "min"}[order]

    def before(o: LoopBuilder, value: int, _index: Any) -> int:
        return o.op("mul", value, value) if order == 2 else o.op("abs", value)

    after = (lambda o, value: o.op("sqrt", value)) if order == 2 else None
    return lw.reduce(kind, x, dims, keepdim=keepdim, dtype=result, accumulate=accumulate, before=before, after=after)
