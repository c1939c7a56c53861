"""Elementwise operators with integer semantics of their own: division with rounding, remainders, bits and shifts.

Eager raises on integer division by zero, so a divisor that is not a constant goes to ATen.
"""

from __future__ import annotations

from typing import Any

import torch

from treadle_codegen.ir.ops import FLOATS, INTS, LOW_FLOATS, Cost, compute_dtype
from treadle_codegen.lower.context import Lowering
from treadle_codegen.lower.indexing import as_shape
from treadle_codegen.lower.loop_builder import number
from treadle_codegen.lower.pointwise import pointwise
from treadle_codegen.lower.registry import lowering
from treadle_codegen.lower.tensor_expr import TensorExpr

DIVIDE = int(Cost.DIVIDE)
BITS = INTS | {torch.bool}


def _divide(lw: Lowering, op: str, a: Any, b: Any) -> TensorExpr | None:
    dtype = compute_dtype(lw.val.dtype)
    if dtype not in INTS | FLOATS:
        return None
    if op != "div" and lw.val.dtype in LOW_FLOATS:
        return None  # eager rounds the quotient to the low precision before it truncates
    if dtype in INTS and not (isinstance(b, int) and b != 0 and number(b, dtype) == b):
        return None
    return lw.pointwise(
        lambda o, x, y: o.op(op, x, y), [a, b], lw.val.dtype, shape=as_shape(lw.val.shape), compute=dtype, cost=DIVIDE
    )


@lowering("aten.div.Tensor_mode", "aten.div.Scalar_mode", symbolic_floats=True)
def div_mode(lw: Lowering, a: Any, b: Any, *, rounding_mode: str | None = None) -> TensorExpr | None:
    if rounding_mode is None:
        return _divide(lw, "div", a, b)
    return _divide(lw, "truncdiv" if rounding_mode == "trunc" else "floordiv", a, b)


@lowering("aten.floor_divide.default")
@lowering("aten.floor_divide.Scalar", symbolic_floats=True)
def floor_divide(lw: Lowering, a: Any, b: Any) -> TensorExpr | None:
    return _divide(lw, "floordiv", a, b)


@lowering("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor", symbolic_floats=True)
def remainder(lw: Lowering, a: Any, b: Any) -> TensorExpr | None:
    return _divide(lw, "remainder", a, b)


@lowering("aten.fmod.Tensor", "aten.fmod.Scalar", symbolic_floats=True)
def fmod(lw: Lowering, a: Any, b: Any) -> TensorExpr | None:
    return _divide(lw, "fmod", a, b)


def _bitwise(name: str) -> None:
    overloads = [f"aten.bitwise_{name}.{kind}" for kind in ("Tensor", "Scalar", "Scalar_Tensor")]

    @pointwise(*overloads, f"aten.__{name}__.Tensor", f"aten.__{name}__.Scalar", operands=2, allow=BITS)
    def fn(o: Any, a: int, b: int) -> int:
        return o.op(f"bitwise_{name}", a, b)


for _name in ("and", "or", "xor"):
    _bitwise(_name)


@pointwise("aten.bitwise_not.default", allow=BITS)
def bitwise_not(o: Any, x: int) -> int:
    return o.op("bitwise_not", x)


def _shift(lw: Lowering, op: str, x: Any, amount: Any) -> TensorExpr | None:
    dtype = lw.val.dtype
    if (
        dtype not in INTS
        or not isinstance(x, TensorExpr)
        or not isinstance(amount, int)
        or not 0 <= amount < torch.iinfo(dtype).bits
    ):
        return None
    return lw.pointwise(lambda o, a, b: o.op(op, a, b), [x, amount], dtype, shape=as_shape(lw.val.shape), compute=dtype)


@lowering("aten.bitwise_left_shift.Tensor_Scalar", "aten.__lshift__.Scalar", "aten.bitwise_left_shift.Tensor")
def shift_left(lw: Lowering, x: Any, amount: Any) -> TensorExpr | None:
    return _shift(lw, "shl", x, amount)


@lowering("aten.bitwise_right_shift.Tensor_Scalar", "aten.__rshift__.Scalar", "aten.bitwise_right_shift.Tensor")
def shift_right(lw: Lowering, x: Any, amount: Any) -> TensorExpr | None:
    return _shift(lw, "shr", x, amount)
