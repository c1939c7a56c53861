"""Complex numbers: loops compute their real and imaginary parts, which stand side by side in memory.

    z = x * y; a = abs(z)      ==>      %0, %1 = load x[2*i], x[2*i + 1];  %2, %3 = load y[2*i], y[2*i + 1]
                                        %4 = %0*%2 - %1*%3;  %5 = %0*%3 + %1*%2;  %6 = hypot %4 %5;  store a[i] %6

A scalar of a complex `TensorExpr` is the pair of its parts. Only what stands in `COMPLEX_LOWERINGS` takes or returns such tensors;
what does not is called through ATen. Products are those of eager: a real factor c is c + 0i, so that infinities give the same NaNs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from treadle_codegen.ir.ops import Cost
from treadle_codegen.lower import pointwise as real
from treadle_codegen.lower import view as views
from treadle_codegen.lower.context import Lowering
from treadle_codegen.lower.indexing import as_shape, linear
from treadle_codegen.lower.loop_builder import LoopBuilder
from treadle_codegen.lower.registry import COMPLEX_LOWERINGS, LOWERINGS, LoweringFn
from treadle_codegen.lower.tensor_expr import Index, TensorExpr
from treadle_shapes.expr import Eq, where

Pair = tuple[int, int]
HARD = int(Cost.TRANSCENDENTAL)

_REARRANGEMENTS = (
    views.view, views.permute_, views.transpose, views.t, views.expand_, views.slice_, views.select_, views.squeeze,
    views.unsqueeze, views.alias, views.split, views.unbind, views.flip_, real.clone,
)  # fmt: skip


def _lowering(*names: str) -> Callable[[LoweringFn], LoweringFn]:
    def register(fn: LoweringFn) -> LoweringFn:
        COMPLEX_LOWERINGS.update(dict.fromkeys(names, fn))
        return fn

    return register


# They move elements, whatever these are.
COMPLEX_LOWERINGS.update({name: fn for name, fn in LOWERINGS.items() if fn in _REARRANGEMENTS})


def _of_pairs(lw: Lowering, fn: Callable[..., Any], operands: Sequence[Any], cost: int) -> TensorExpr:
    """`fn(o, *pairs)` over operands converted to the complex dtype that they have together."""
    dtypes = [x.dtype for x in operands if isinstance(x, TensorExpr) and x.dtype.is_complex]
    compute = lw.val.dtype if lw.val.dtype.is_complex else dtypes[0]
    return lw.pointwise(fn, operands, lw.val.dtype, shape=as_shape(lw.val.shape), compute=compute, cost=cost)


def product(o: LoopBuilder, x: Pair, y: Pair) -> Pair:
    """x * y as eager computes it: four products and two sums, each rounded. ac + (-b)d is ac - bd to the bit."""
    (a, b), (c, d) = x, y
    return (
        o.op("add", o.op("mul", a, c), o.op("mul", o.op("neg", b), d)),
        o.op("add", o.op("mul", a, d), o.op("mul", b, c)),
    )


@_lowering("aten.mul.Tensor", "aten.mul.Scalar")
def mul(lw: Lowering, x: Any, y: Any) -> TensorExpr:
    return _of_pairs(lw, product, (x, y), 6)


@_lowering("aten.add.Tensor", "aten.add.Scalar")
def add(lw: Lowering, x: Any, y: Any, alpha: Any = 1) -> TensorExpr | None:
    """x + alpha * y. Eager multiplies by a complex alpha even where that is 1: an infinite part of y makes the other one nan."""
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)):
        return None

    def fn(o: LoopBuilder, p: Pair, q: Pair) -> Pair:
        part = o.dtype_of(q[0])
        re, im = product(o, q, (o.const(alpha, part), o.const(0, part)))
        return o.op("add", p[0], re), o.op("add", p[1], im)

    return _of_pairs(lw, fn, (x, y), 8)


@_lowering("aten.sub.Tensor", "aten.sub.Scalar")
def sub(lw: Lowering, x: Any, y: Any, alpha: Any = 1) -> TensorExpr | None:
    return add(lw, x, y, alpha if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) else -alpha)


@_lowering("aten.neg.default")
def neg(lw: Lowering, x: TensorExpr) -> TensorExpr:
    """0 - x, as eager's vectors do: no part becomes -0.0."""

    def fn(o: LoopBuilder, p: Pair) -> Pair:
        zero = o.const(0, o.dtype_of(p[0]))
        return o.op("sub", zero, p[0]), o.op("sub", zero, p[1])

    return _of_pairs(lw, fn, (x,), 2)


@_lowering("aten._conj.default", "aten._conj_copy.default", "aten.conj_physical.default")
def conj(lw: Lowering, x: TensorExpr) -> TensorExpr:
    return _of_pairs(lw, lambda o, p: (p[0], o.op("neg", p[1])), (x,), 1)


@_lowering("aten.resolve_conj.default")
def resolve_conj(lw: Lowering, x: TensorExpr) -> TensorExpr:
    return x


@_lowering("aten._to_copy.default", "prims.convert_element_type.default")
def convert(lw: Lowering, x: TensorExpr, *args: Any, **kwargs: Any) -> TensorExpr | None:
    """A conversion to a complex dtype; from one to a real dtype, ATen warns."""
    return real.convert(lw, x, lw.val.dtype) if lw.val.dtype.is_complex else None


@_lowering("aten.abs.default")
def absolute(lw: Lowering, x: TensorExpr) -> TensorExpr:
    return _of_pairs(lw, lambda o, p: o.op("hypot", p[0], p[1]), (x,), HARD)


@_lowering("aten.angle.default")
def angle(lw: Lowering, x: TensorExpr) -> TensorExpr:
    return _of_pairs(lw, lambda o, p: o.op("atan2", p[1], p[0]), (x,), HARD)


@_lowering("aten.complex.default")
def complex_of(lw: Lowering, re: TensorExpr, im: TensorExpr) -> TensorExpr:
    return lw.pointwise(lambda o, a, b: (a, b), (re, im), lw.val.dtype, shape=as_shape(lw.val.shape))


@_lowering("aten.polar.default")
def polar(lw: Lowering, radius: TensorExpr, phi: TensorExpr) -> TensorExpr:
    def parts(o: LoopBuilder, r: int, p: int) -> Pair:
        return o.op("mul", r, o.op("cos", p)), o.op("mul", r, o.op("sin", p))

    return lw.pointwise(parts, (radius, phi), lw.val.dtype, shape=as_shape(lw.val.shape), cost=2 * HARD)


@_lowering("aten.view_as_real.default", "aten.view_as_real_copy.default")
def view_as_real(lw: Lowering, x: TensorExpr) -> TensorExpr:
    """The parts as a last dimension: read straight from memory where they stand there."""
    dtype = lw.val.dtype

    def element(o: LoopBuilder, index: Index) -> int:
        stored, part = x.storage, index[-1]
        if stored is not None:
            return o.load(stored.buffer, linear(index[:-1], stored.strides, stored.offset) * 2 + part, dtype)
        re, im = x.element(o, index[:-1])  # type: ignore[misc]
        if isinstance(part, int):
            return im if part else re
        first = o.cast(o.index(where(Eq(part, 0), 1, 0)), torch.bool)
        return o.op("where", first, re, im)

    return TensorExpr.computed((*x.shape, 2), dtype, element, x.cost, x.reads)


@_lowering("aten.view_as_complex.default", "aten.view_as_complex_copy.default")
def view_as_complex(lw: Lowering, x: TensorExpr) -> TensorExpr:
    def element(o: LoopBuilder, index: Index) -> Any:
        return x.element(o, (*index, 0)), x.element(o, (*index, 1))

    return TensorExpr.computed(x.shape[:-1], lw.val.dtype, element, 2 * x.cost, x.reads)


__all__ = ["COMPLEX_LOWERINGS"]
