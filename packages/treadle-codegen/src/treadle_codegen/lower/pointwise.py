"""Elementwise operators on floats and mixed dtypes: one small function on scalars per operator.

The function gets the loop builder, the operands as scalars of the compute dtype, then the operator's other parameters. The
compute dtype is that of the result (`promote="result"`), or what the operands promote to (`promote="operands"`, for
comparisons and the like, whose result is bool).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from treadle_codegen.ir.ops import FLOATS, INTS, LOW_FLOATS, OPS, Cost, compute_dtype
from treadle_codegen.lower.context import Lowering
from treadle_codegen.lower.indexing import as_shape
from treadle_codegen.lower.loop_builder import LoopBuilder, number
from treadle_codegen.lower.registry import lowering
from treadle_codegen.lower.tensor_expr import TensorExpr
from treadle_shapes.expr import Expr
from treadle_shapes.floats import FloatExpr

# Eager's clamp (not clamp_min, clamp_max) by one number that is nan: torch 2.11 leaves the tensor as it is, later ones give nan.
_CLAMP_IGNORES_ONE_NAN = torch.__version__ < "2.12"
HARD, DIVIDE = int(Cost.TRANSCENDENTAL), int(Cost.DIVIDE)


def pointwise(
    *names: str,
    operands: int = 1,
    promote: str = "result",
    cost: int = 1,
    allow: frozenset[torch.dtype] | None = None,
    narrow: bool = False,
    symbolic_floats: bool = False,
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Register a scalar function as the lowering of elementwise overloads; the first `operands` arguments are tensors or numbers.

    `allow` limits the compute dtype; anything else is left to ATen. `narrow`: eager rounds a number among the operands to the
    low-precision dtype of the tensor; elsewhere it goes into the arithmetic as float32.
    """

    def register(fn: Callable[..., int]) -> Callable[..., int]:
        @lowering(*names, symbolic_floats=symbolic_floats)
        def lower(lw: Lowering, *args: Any, **kwargs: Any) -> TensorExpr | None:
            inputs = args[:operands]
            common = _common_dtype(inputs) if promote == "operands" else lw.val.dtype
            compute = compute_dtype(common)
            if compute is None or (allow is not None and compute not in allow):
                return None
            if promote == "operands" and not all(_fits(x, compute) for x in inputs):
                return None
            prepare = _rounding_operands(inputs, common, narrow)
            return lw.pointwise(
                lambda o, *values: fn(o, *(prepare(o, values) if prepare else values), *args[operands:], **kwargs),
                inputs, lw.val.dtype, shape=as_shape(lw.val.shape), compute=compute, cost=cost,
            )  # fmt: skip

        return fn

    return register


def _rounding_operands(
    operands: Sequence[Any], common: torch.dtype, narrow: bool
) -> Callable[[LoopBuilder, Sequence[int]], list[int]] | None:
    """Rounds the operands that eager rounds to the low-precision dtype in which it computes, or None where there are none.

    These are tensors of integers, and with `narrow` numbers beside tensors of low precision alone. Tensors of floats without dimensions
    count as numbers, but as the first operand: eager keeps those of the second one only.
    """
    tensors = [x for x in operands if isinstance(x, TensorExpr)]
    low = next((x.dtype for x in tensors if x.dtype in LOW_FLOATS), None)
    if common in LOW_FLOATS:
        low = common
    is_low = common in LOW_FLOATS
    narrow = narrow and low is not None and (is_low or not any(x.dtype in FLOATS for x in tensors))

    def rounds(place: int, x: Any) -> bool:
        if not isinstance(x, TensorExpr):
            return narrow
        if x.dtype.is_floating_point:
            return is_low and x.dtype is not common and (narrow or place == 0)
        return is_low and x.dtype in INTS and x.dtype.itemsize > 1

    is_rounded = [rounds(place, x) for place, x in enumerate(operands)]
    if low is None or not any(is_rounded):
        return None

    def prepare(o: LoopBuilder, values: Sequence[int]) -> list[int]:
        return [
            o.cast(o.cast(v, low), torch.float32) if rounds else v for v, rounds in zip(values, is_rounded, strict=True)
        ]

    return prepare


def operand_dtype(operands: Sequence[Any]) -> torch.dtype | None:
    """The dtype in which loops compare these operands, or None if they cannot."""
    return compute_dtype(_common_dtype(operands))


def _common_dtype(operands: Sequence[Any]) -> torch.dtype:
    """The dtype to which eager converts these operands."""
    tensors = [x for x in operands if isinstance(x, TensorExpr)]
    dtypes = {x.dtype for x in tensors}
    numbers = [x for x in operands if not isinstance(x, TensorExpr)]
    if len(dtypes) == 1 and (next(iter(dtypes)).is_floating_point or not numbers):
        return next(iter(dtypes))
    stand_ins = [torch.empty((1,) * x.dim, dtype=x.dtype, device="meta") for x in tensors]
    numbers = [1 if isinstance(x, Expr) else 1.0 if isinstance(x, FloatExpr) else x for x in numbers]
    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    return elementwise_dtypes(*stand_ins, *numbers, type_promotion_kind=kind)[1]


def _fits(x: Any, dtype: torch.dtype) -> bool:
    """Whether a number survives conversion to an integer dtype; eager has rules of its own when it does not."""
    return (
        isinstance(x, (TensorExpr, Expr))
        or dtype not in INTS
        or (not isinstance(x, FloatExpr) and number(x, dtype) == x)
    )


# -- arithmetic --------------------------------------------------------------------------------------------------------


def _scaled(o: LoopBuilder, value: int, alpha: Any) -> int:
    return value if alpha == 1 else o.op("mul", value, o.like(alpha, value))


@pointwise("aten.add.Tensor", "aten.add.Scalar", operands=2, narrow=True, symbolic_floats=True)
def add(o: LoopBuilder, a: int, b: int, alpha: Any = 1) -> int:
    if o.dtype_of(a) == torch.bool:
        return o.op("bitwise_or", a, b if alpha else o.const(False, torch.bool))
    return o.op("add", a, _scaled(o, b, alpha))


@pointwise("aten.sub.Tensor", "aten.sub.Scalar", operands=2, narrow=True, symbolic_floats=True)
def sub(o: LoopBuilder, a: int, b: int, alpha: Any = 1) -> int:
    return o.op("sub", a, _scaled(o, b, alpha))


@pointwise("aten.rsub.Tensor", "aten.rsub.Scalar", operands=2, narrow=True, symbolic_floats=True)
def rsub(o: LoopBuilder, a: int, b: int, alpha: Any = 1) -> int:
    return o.op("sub", b, _scaled(o, a, alpha))


@pointwise("aten.mul.Tensor", "aten.mul.Scalar", operands=2, symbolic_floats=True)
def mul(o: LoopBuilder, a: int, b: int) -> int:
    return o.op("bitwise_and" if o.dtype_of(a) == torch.bool else "mul", a, b)


@pointwise(
    "aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor", operands=2, cost=DIVIDE, symbolic_floats=True
)
def div(o: LoopBuilder, a: int, b: int) -> int:
    return o.op("div", a, b)


@pointwise("aten.pow.Tensor_Tensor", "aten.pow.Scalar", operands=2, cost=2 * HARD, allow=FLOATS, symbolic_floats=True)
def pow_(o: LoopBuilder, a: int, b: int) -> int:
    return o.op("pow", a, b)


@lowering("aten.pow.Tensor_Scalar")
def pow_scalar(lw: Lowering, x: TensorExpr, exponent: Any) -> TensorExpr | None:
    dtype = compute_dtype(lw.val.dtype)
    if dtype == torch.bool or isinstance(exponent, Expr):
        return None
    if dtype in INTS and not (isinstance(exponent, int) and 0 <= exponent <= 8):
        return None

    has_roots = lw.val.dtype is not torch.float16 or lw.val.device.type != "cpu"

    def power(o: LoopBuilder, v: int) -> int:
        return small_power(o, v, exponent, has_roots)

    cost = 2 if exponent in (0, 1, 2, 3) else 2 * DIVIDE if abs(exponent) in (0.5, 1, 2) else 2 * HARD
    return lw.pointwise(power, [x], lw.val.dtype, shape=x.shape, compute=dtype, cost=cost)


def small_power(o: LoopBuilder, x: int, exponent: Any, has_roots: bool) -> int:
    """The cases that eager treats apart (the same way), else `pow`.

    has_roots: whether the powers 0.5 and -0.5 are roots, which -0 and -inf tell from powers. On the CPU, those of float16 are not.
    """
    integer = o.dtype_of(x) in INTS
    if exponent == 0:
        return o.like(1, x)
    if exponent == 1:
        return x
    if exponent == 0.5 and has_roots:
        return o.op("sqrt", x)
    if exponent == -0.5 and has_roots:
        return o.op("rsqrt", x)
    if exponent == -1:
        return o.op("reciprocal", x)
    square = o.op("mul", x, x)
    if exponent == 2:
        return square
    if exponent == -2:
        return o.op("reciprocal", square)
    if exponent == 3:
        return o.op("mul", square, x)
    if integer:
        result = square
        for _ in range(int(exponent) - 2):
            result = o.op("mul", result, x)
        return result
    return o.op("pow", x, o.like(exponent, x))


@pointwise("aten.neg.default")
def neg(o: LoopBuilder, x: int) -> int:
    return o.op("neg", x)


@pointwise("aten.abs.default")
def abs_(o: LoopBuilder, x: int) -> int:
    return x if o.dtype_of(x) in (torch.bool, torch.uint8) else o.op("abs", x)


@pointwise("aten.sign.default", "aten.sgn.default")
def sign(o: LoopBuilder, x: int) -> int:
    return x if o.dtype_of(x) == torch.bool else o.op("sign", x)


@pointwise("aten.square.default")
def square(o: LoopBuilder, x: int) -> int:
    return o.op("bitwise_and" if o.dtype_of(x) == torch.bool else "mul", x, x)


@pointwise("aten.reciprocal.default", cost=DIVIDE)
def reciprocal(o: LoopBuilder, x: int) -> int:
    return o.op("reciprocal", x)


@pointwise("aten.positive.default")
def positive(o: LoopBuilder, x: int) -> int:
    return x


# -- functions of one float --------------------------------------------------------------------------------------------


def _unary(name: str) -> None:
    @pointwise(f"aten.{name}.default", cost=int(OPS[name].cost), allow=FLOATS)
    def fn(o: LoopBuilder, x: int) -> int:
        return o.op(name, x)


for _name in (
    "sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
    "sigmoid erf erfc lgamma"
).split():
    _unary(_name)


def _rounding(name: str) -> None:
    @pointwise(f"aten.{name}.default")
    def fn(o: LoopBuilder, x: int) -> int:
        return o.op(name, x) if o.dtype_of(x) in FLOATS else x


for _name in ("floor", "ceil", "trunc", "round"):
    _rounding(_name)


@pointwise("aten.frac.default", allow=FLOATS)
def frac(o: LoopBuilder, x: int) -> int:
    return o.op("sub", x, o.op("trunc", x))


@pointwise("aten.atan2.default", operands=2, cost=HARD, allow=FLOATS)
def atan2(o: LoopBuilder, a: int, b: int) -> int:
    return o.op("atan2", a, b)


@pointwise("aten.hypot.default", operands=2, cost=HARD, allow=FLOATS)
def hypot(o: LoopBuilder, a: int, b: int) -> int:
    return o.op("hypot", a, b)


@pointwise("aten.copysign.Tensor", "aten.copysign.Scalar", operands=2, allow=FLOATS, symbolic_floats=True)
def copysign(o: LoopBuilder, a: int, b: int) -> int:
    return o.op("copysign", a, b)


@pointwise("aten.xlogy.Tensor", operands=2, cost=HARD, allow=FLOATS)
def xlogy(o: LoopBuilder, a: int, b: int) -> int:
    zero = o.like(0.0, a)
    value = o.op("where", o.op("eq", a, zero), zero, o.op("mul", a, o.op("log", b)))
    return o.op("where", o.op("isnan", b), b, value)


@pointwise("aten.logaddexp.default", operands=2, cost=2 * HARD, allow=FLOATS)
def logaddexp(o: LoopBuilder, a: int, b: int) -> int:
    largest = o.op("maximum", a, b)
    gap = o.op("neg", o.op("abs", o.op("sub", a, b)))
    value = o.op("add", largest, o.op("log1p", o.op("exp", gap)))
    same_infinity = o.op("bitwise_and", o.op("isinf", a), o.op("eq", a, b))
    return o.op("where", same_infinity, a, value)


@pointwise("aten.logit.default", cost=HARD, allow=FLOATS)
def logit(o: LoopBuilder, x: int, eps: float | None = None) -> int:
    one = o.like(1.0, x)
    if eps is not None:
        low, high = o.like(eps, x), o.op("sub", one, o.like(eps, x))
        x = o.op("where", o.op("lt", x, low), low, o.op("where", o.op("gt", x, high), high, x))
    return o.op("log", o.op("div", x, o.op("sub", one, x)))


# -- comparisons, selection, logic -------------------------------------------------------------------------------------


def _comparison(name: str) -> None:
    @pointwise(
        f"aten.{name}.Tensor", f"aten.{name}.Scalar", operands=2, promote="operands", narrow=True, symbolic_floats=True
    )
    def fn(o: LoopBuilder, a: int, b: int) -> int:
        return o.op(name, a, b)


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _comparison(_name)


def _logical_binary(lw: Lowering, op: str, a: Any, b: Any) -> TensorExpr:
    """A scalar tensor of a wider dtype is converted first: 256 beside bytes is false."""
    common = _common_dtype([a, b])

    def fn(o: LoopBuilder, *values: int) -> int:
        return o.op(op, *[o.cast(o.cast(v, compute_dtype(common)), torch.bool) for v in values])

    return lw.pointwise(fn, [a, b], torch.bool, shape=as_shape(lw.val.shape))


@lowering("aten.logical_and.default")
def logical_and(lw: Lowering, a: Any, b: Any) -> TensorExpr:
    return _logical_binary(lw, "bitwise_and", a, b)


@lowering("aten.logical_or.default")
def logical_or(lw: Lowering, a: Any, b: Any) -> TensorExpr:
    return _logical_binary(lw, "bitwise_or", a, b)


@lowering("aten.logical_xor.default")
def logical_xor(lw: Lowering, a: Any, b: Any) -> TensorExpr:
    return _logical_binary(lw, "bitwise_xor", a, b)


@lowering("aten.logical_not.default")
def logical_not(lw: Lowering, x: TensorExpr) -> TensorExpr:
    return lw.pointwise(lambda o, v: o.op("bitwise_not", o.cast(v, torch.bool)), [x], torch.bool, shape=x.shape)


def _float_test(name: str, otherwise: bool) -> None:
    @lowering(f"aten.{name}.default")
    def lower(lw: Lowering, x: TensorExpr) -> TensorExpr:
        def fn(o: LoopBuilder, v: int) -> int:
            return o.op(name, v) if o.dtype_of(v) in FLOATS else o.const(otherwise, torch.bool)

        return lw.pointwise(fn, [x], torch.bool, shape=x.shape)


_float_test("isnan", False)
_float_test("isinf", False)


@lowering("aten.isfinite.default")
def isfinite(lw: Lowering, x: TensorExpr) -> TensorExpr:
    def fn(o: LoopBuilder, v: int) -> int:
        if o.dtype_of(v) not in FLOATS:
            return o.const(True, torch.bool)
        return o.op("bitwise_not", o.op("bitwise_or", o.op("isnan", v), o.op("isinf", v)))

    return lw.pointwise(fn, [x], torch.bool, shape=x.shape)


@lowering("aten.signbit.default")
def signbit(lw: Lowering, x: TensorExpr) -> TensorExpr | None:
    if x.dtype == torch.bool:
        return None

    def fn(o: LoopBuilder, v: int) -> int:
        return o.op("signbit", v) if o.dtype_of(v) in FLOATS else o.op("lt", v, o.like(0, v))

    return lw.pointwise(fn, [x], torch.bool, shape=x.shape)


@pointwise("aten.maximum.default", operands=2)
def maximum(o: LoopBuilder, a: int, b: int) -> int:
    return o.op("bitwise_or" if o.dtype_of(a) == torch.bool else "maximum", a, b)


@pointwise("aten.minimum.default", operands=2)
def minimum(o: LoopBuilder, a: int, b: int) -> int:
    return o.op("bitwise_and" if o.dtype_of(a) == torch.bool else "minimum", a, b)


@pointwise("aten.fmax.default", operands=2)
def fmax(o: LoopBuilder, a: int, b: int) -> int:
    if o.dtype_of(a) not in FLOATS:
        return maximum(o, a, b)
    return o.op("where", o.op("isnan", a), b, o.op("where", o.op("isnan", b), a, o.op("maximum", a, b)))


@pointwise("aten.fmin.default", operands=2)
def fmin(o: LoopBuilder, a: int, b: int) -> int:
    if o.dtype_of(a) not in FLOATS:
        return minimum(o, a, b)
    return o.op("where", o.op("isnan", a), b, o.op("where", o.op("isnan", b), a, o.op("minimum", a, b)))


@lowering(
    "aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar", symbolic_floats=True
)
def where(lw: Lowering, condition: TensorExpr, a: Any, b: Any) -> TensorExpr | None:
    if condition.dtype != torch.bool:
        return None
    dtype = compute_dtype(lw.val.dtype)

    def fn(o: LoopBuilder, c: int, x: int, y: int) -> int:
        return o.op("where", c, o.cast(x, dtype), o.cast(y, dtype))

    return lw.pointwise(fn, [condition, a, b], lw.val.dtype, shape=as_shape(lw.val.shape))


@lowering("aten.masked_fill.Scalar", "aten.masked_fill.Tensor", symbolic_floats=True)
def masked_fill(lw: Lowering, x: TensorExpr, mask: TensorExpr, value: Any) -> TensorExpr | None:
    if mask.dtype != torch.bool or not (isinstance(value, TensorExpr) or _fits(value, x.dtype)):
        return None
    return where(lw, mask, value, x)


@lowering("aten.clamp.default", "aten.clamp.Tensor", "aten.clip.default", symbolic_floats=True)
def clamp(lw: Lowering, x: TensorExpr, min: Any = None, max: Any = None) -> TensorExpr | None:
    return _bounded(lw, x, min, max, ignore_nan=_CLAMP_IGNORES_ONE_NAN)


def _bounded(lw: Lowering, x: TensorExpr, min: Any, max: Any, ignore_nan: bool = False) -> TensorExpr | None:
    dtype = compute_dtype(lw.val.dtype)
    if dtype == torch.bool:
        return None
    if min is None and max is None and x.dim:
        return None
    bounds = [b for b in (min, max) if b is not None]
    if dtype in INTS and not all(_fits(b, dtype) for b in bounds):
        return None

    # Of two zeros the value stays, as in eager: both operators give their second argument where neither is larger.
    def fn(o: LoopBuilder, v: int, *limits: int) -> int:
        bounded, rest = v, list(limits)
        if min is not None:
            bounded = o.op("maximum", rest.pop(0), bounded)
        if max is not None:
            bounded = o.op("minimum", rest.pop(0), bounded)
        if ignore_nan and dtype in FLOATS and len(bounds) == 1 and not isinstance(bounds[0], TensorExpr):
            return o.op("where", o.op("isnan", limits[0]), v, bounded)
        return bounded

    return lw.pointwise(fn, [x, *bounds], lw.val.dtype, shape=as_shape(lw.val.shape), compute=dtype, cost=2)


@lowering("aten.hardtanh.default", symbolic_floats=True)
def hardtanh(lw: Lowering, x: TensorExpr, min_val: Any = -1, max_val: Any = 1) -> TensorExpr | None:
    return _bounded(lw, x, min_val, max_val)


@lowering("aten.clamp_min.default", "aten.clamp_min.Tensor", symbolic_floats=True)
def clamp_min(lw: Lowering, x: TensorExpr, min: Any) -> TensorExpr | None:
    return _bounded(lw, x, min, None)


@lowering("aten.clamp_max.default", "aten.clamp_max.Tensor", symbolic_floats=True)
def clamp_max(lw: Lowering, x: TensorExpr, max: Any) -> TensorExpr | None:
    return _bounded(lw, x, None, max)


# -- combinations ------------------------------------------------------------------------------------------------------


@lowering("aten.addcmul.default", symbolic_floats=True)
def addcmul(lw: Lowering, x: TensorExpr, a: TensorExpr, b: TensorExpr, *, value: Any = 1) -> TensorExpr | None:
    dtype = compute_dtype(lw.val.dtype)
    if dtype == torch.bool:
        return None

    def fn(o: LoopBuilder, v: int, p: int, q: int) -> int:
        return o.op("add", v, o.op("mul", _scaled(o, p, value), q))

    return lw.pointwise(fn, [x, a, b], lw.val.dtype, shape=as_shape(lw.val.shape), compute=dtype, cost=3)


@lowering("aten.addcdiv.default", symbolic_floats=True)
def addcdiv(lw: Lowering, x: TensorExpr, a: TensorExpr, b: TensorExpr, *, value: Any = 1) -> TensorExpr | None:
    dtype = compute_dtype(lw.val.dtype)
    if dtype not in FLOATS:
        return None

    def fn(o: LoopBuilder, v: int, p: int, q: int) -> int:
        return o.op("add", v, o.op("div", _scaled(o, p, value), q))

    return lw.pointwise(fn, [x, a, b], lw.val.dtype, shape=as_shape(lw.val.shape), compute=dtype, cost=DIVIDE + 2)


@pointwise("aten.lerp.Tensor", "aten.lerp.Scalar", operands=3, cost=6, allow=FLOATS, symbolic_floats=True)
def lerp(o: LoopBuilder, start: int, end: int, weight: int) -> int:
    gap = o.op("sub", end, start)
    near = o.op("add", start, o.op("mul", weight, gap))
    far = o.op("sub", end, o.op("mul", gap, o.op("sub", o.like(1.0, weight), weight)))
    return o.op("where", o.op("lt", o.op("abs", weight), o.like(0.5, weight)), near, far)


# -- copies and conversions --------------------------------------------------------------------------------------------


@lowering("aten.clone.default", "aten.contiguous.default")
def clone(lw: Lowering, x: TensorExpr, *, memory_format: Any = None) -> TensorExpr:
    return lw.pointwise(lambda o, v: v, [x], x.dtype, shape=x.shape, cost=0) if x.storage is None else x


@lowering("aten._to_copy.default")
def to_copy(lw: Lowering, x: TensorExpr, **kwargs: Any) -> TensorExpr | None:
    return convert(lw, x, lw.val.dtype)


@lowering("prims.convert_element_type.default")
def convert(lw: Lowering, x: TensorExpr, dtype: torch.dtype) -> TensorExpr:
    if dtype == x.dtype:
        return x

    def fn(o: LoopBuilder, v: int) -> int:
        # A conversion to a low-precision float rounds, though arithmetic goes on in float32.
        return o.cast(o.cast(v, dtype), compute_dtype(dtype))

    return lw.pointwise(fn, [x], dtype, shape=x.shape)


@lowering("aten.copy.default")
def copy(lw: Lowering, x: TensorExpr, src: TensorExpr, non_blocking: bool = False) -> TensorExpr:
    return lw.pointwise(lambda o, v: v, [src], x.dtype, shape=x.shape)


@lowering("aten.fill.Scalar", "aten.fill.Tensor", symbolic_floats=True)
def fill(lw: Lowering, x: TensorExpr, value: Any) -> TensorExpr:
    return lw.pointwise(lambda o, v: v, [value], x.dtype, shape=x.shape)


@lowering("aten.native_dropout.default")
def native_dropout(lw: Lowering, x: TensorExpr, p: float, train: bool | None) -> tuple[TensorExpr, TensorExpr] | None:
    if train is not False:
        return None
    return x, lw.full(x.shape, True, torch.bool)


@lowering("aten.dropout.default")
def dropout(lw: Lowering, x: TensorExpr, p: float, train: bool) -> TensorExpr | None:
    return None if train and p > 0 else x
