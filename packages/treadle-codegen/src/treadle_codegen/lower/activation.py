"""Activations and similar elementwise functions of one float."""

from __future__ import annotations

import math
from typing import Any

import torch

from treadle_codegen.ir.ops import FLOATS, Cost, compute_dtype
from treadle_codegen.lower.context import Lowering
from treadle_codegen.lower.indexing import as_shape
from treadle_codegen.lower.loop_builder import LoopBuilder
from treadle_codegen.lower.pointwise import pointwise
from treadle_codegen.lower.registry import lowering
from treadle_codegen.lower.tensor_expr import TensorExpr
from treadle_shapes.floats import FloatExpr

# At import: a program may have replaced functions of `math` by the time that it is compiled.
_SQRT_HALF, _SQRT_TWO_OVER_PI = math.sqrt(0.5), math.sqrt(2 / math.pi)
HARD, DIVIDE = int(Cost.TRANSCENDENTAL), int(Cost.DIVIDE)


@pointwise("aten.relu.default")
def relu(o: LoopBuilder, x: int) -> int:
    return x if o.dtype_of(x) in (torch.bool, torch.uint8) else o.op("maximum", o.like(0, x), x)


@pointwise("aten.relu6.default")
def relu6(o: LoopBuilder, x: int) -> int:
    return o.op("minimum", o.like(6, x), o.op("maximum", o.like(0, x), x))


@pointwise("aten.silu.default", cost=HARD + DIVIDE, allow=FLOATS)
def silu(o: LoopBuilder, x: int) -> int:
    return o.op("div", x, o.op("add", o.like(1.0, x), o.op("exp", o.op("neg", x))))


@pointwise("aten.gelu.default", cost=HARD + 4, allow=FLOATS)
def gelu(o: LoopBuilder, x: int, approximate: str = "none") -> int:
    half, one = o.like(0.5, x), o.like(1.0, x)
    if approximate == "tanh":
        cube = o.op("mul", o.op("mul", x, x), x)
        inner = o.op("mul", o.like(_SQRT_TWO_OVER_PI, x), o.op("add", x, o.op("mul", o.like(0.044715, x), cube)))
        return o.op("mul", o.op("mul", half, x), o.op("add", one, o.op("tanh", inner)))
    scaled = o.op("mul", x, o.like(_SQRT_HALF, x))
    if o.dtype_of(x) == torch.float32:
        return o.op("mul", o.op("mul", x, half), o.op("one_plus_erf", scaled))
    return o.op("mul", o.op("mul", x, half), o.op("add", one, o.op("erf", scaled)))


def _clipped_plus_3(o: LoopBuilder, x: int) -> int:
    return o.op("minimum", o.like(6.0, x), o.op("maximum", o.like(0.0, x), o.op("add", x, o.like(3.0, x))))


@pointwise("aten.hardsigmoid.default", cost=4, allow=FLOATS)
def hardsigmoid(o: LoopBuilder, x: int) -> int:
    return o.op("mul", _clipped_plus_3(o, x), o.like(1 / 6, x))


@pointwise("aten.hardswish.default", cost=5, allow=FLOATS)
def hardswish(o: LoopBuilder, x: int) -> int:
    return o.op("mul", o.op("mul", x, _clipped_plus_3(o, x)), o.like(1 / 6, x))


@pointwise("aten.leaky_relu.default", cost=2, allow=FLOATS, symbolic_floats=True)
def leaky_relu(o: LoopBuilder, x: int, negative_slope: float = 0.01) -> int:
    return o.op("where", o.op("gt", x, o.like(0.0, x)), x, o.op("mul", x, o.like(negative_slope, x)))


@pointwise("aten.prelu.default", "aten._prelu_kernel.default", operands=2, cost=2, allow=FLOATS)
def prelu_kernel(o: LoopBuilder, x: int, weight: int) -> int:
    return o.op("where", o.op("gt", x, o.like(0.0, x)), x, o.op("mul", x, weight))


@pointwise("aten.elu.default", cost=HARD + 3, allow=FLOATS, symbolic_floats=True)
def elu(o: LoopBuilder, x: int, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> int:
    if isinstance(alpha, FloatExpr) or isinstance(scale, FloatExpr):
        factor = o.op("mul", o.like(alpha, x), o.like(scale, x))
    else:
        factor = o.like(alpha * scale, x)
    negative = o.op("mul", o.op("expm1", o.op("mul", x, o.like(input_scale, x))), factor)
    return o.op("where", o.op("lt", x, o.like(0.0, x)), negative, o.op("mul", x, o.like(scale, x)))


def _softplus(o: LoopBuilder, x: int, beta: float, threshold: float) -> int:
    scaled = o.op("mul", x, o.like(beta, x))
    soft = o.op("div", o.op("log1p", o.op("exp", scaled)), o.like(beta, x))
    return o.op("where", o.op("gt", scaled, o.like(threshold, x)), x, soft)


@pointwise("aten.softplus.default", cost=2 * HARD + DIVIDE, allow=FLOATS, symbolic_floats=True)
def softplus(o: LoopBuilder, x: int, beta: float = 1, threshold: float = 20) -> int:
    return _softplus(o, x, beta, threshold)


@pointwise("aten.mish.default", cost=3 * HARD, allow=FLOATS)
def mish(o: LoopBuilder, x: int) -> int:
    return o.op("mul", x, o.op("tanh", o.op("log1p", o.op("exp", x))))


@pointwise("aten.log_sigmoid.default", cost=2 * HARD, allow=FLOATS)
def log_sigmoid(o: LoopBuilder, x: int) -> int:
    low = o.op("minimum", o.like(0.0, x), x)
    return o.op("sub", low, o.op("log1p", o.op("exp", o.op("neg", o.op("abs", x)))))


@lowering("aten.log_sigmoid_forward.default")
def log_sigmoid_forward(lw: Lowering, x: TensorExpr) -> tuple[TensorExpr, TensorExpr] | None:
    out, buffer = lw.val
    dtype = compute_dtype(out.dtype)
    if dtype not in FLOATS or 1 in lw.used_results:
        return None
    result = lw.pointwise(log_sigmoid, [x], out.dtype, shape=x.shape, compute=dtype, cost=2 * HARD)
    return result, lw.full(as_shape(buffer.shape), 0, buffer.dtype)


@lowering("aten.nan_to_num.default")
def nan_to_num(
    lw: Lowering, x: TensorExpr, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> TensorExpr | None:
    if x.dtype not in FLOATS:
        return None if x.dtype.is_floating_point else x
    largest = torch.finfo(x.dtype).max
    high, low = largest if posinf is None else posinf, -largest if neginf is None else neginf

    def fn(o: LoopBuilder, v: int) -> int:
        finite = o.op("where", o.op("eq", v, o.like(math.inf, v)), o.like(high, v), v)
        finite = o.op("where", o.op("eq", v, o.like(-math.inf, v)), o.like(low, v), finite)
        return o.op("where", o.op("isnan", v), o.like(nan or 0.0, v), finite)

    return lw.pointwise(fn, [x], x.dtype, shape=x.shape, compute=x.dtype, cost=6)


@pointwise("aten.sinc.default", cost=HARD + DIVIDE, allow=FLOATS)
def sinc(o: LoopBuilder, x: int) -> int:
    scaled = o.op("mul", x, o.like(math.pi, x))
    return o.op("where", o.op("eq", x, o.like(0.0, x)), o.like(1.0, x), o.op("div", o.op("sin", scaled), scaled))


@pointwise("aten.threshold.default", symbolic_floats=True)
def threshold(o: LoopBuilder, x: int, threshold: Any, value: Any) -> int:
    return o.op("where", o.op("le", x, o.like(threshold, x)), o.like(value, x), x)


def _minus(o: LoopBuilder, value: Any, other: int) -> int:
    return o.op("neg", o.like(value, other)) if isinstance(value, FloatExpr) else o.like(-value, other)


def _shrunk(o: LoopBuilder, value: int, x: int, limit: int) -> int:
    inside = o.op("bitwise_and", o.op("ge", x, o.op("neg", limit)), o.op("le", x, limit))
    return o.op("where", inside, o.like(0.0, value), value)


@pointwise("aten.hardshrink.default", operands=2, narrow=True, cost=3, allow=FLOATS, symbolic_floats=True)
def hardshrink(o: LoopBuilder, x: int, limit: int | None = None) -> int:
    return _shrunk(o, x, x, o.like(0.5, x) if limit is None else limit)


@pointwise(
    "aten.hardshrink_backward.default",
    "aten.softshrink_backward.default",
    operands=3,
    narrow=True,
    cost=3,
    allow=FLOATS,
    symbolic_floats=True,
)
def shrink_backward(o: LoopBuilder, grad: int, x: int, limit: int) -> int:
    return _shrunk(o, grad, x, limit)


@pointwise("aten.softshrink.default", cost=4, allow=FLOATS, symbolic_floats=True)
def softshrink(o: LoopBuilder, x: int, lambd: float = 0.5) -> int:
    limit = o.like(lambd, x)
    low = o.op("where", o.op("lt", x, _minus(o, lambd, x)), o.op("add", x, limit), o.op("mul", x, o.like(0.0, x)))
    return o.op("where", o.op("gt", x, limit), o.op("sub", x, limit), low)
