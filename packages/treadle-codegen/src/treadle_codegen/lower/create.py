"""Operators that create tensors: filled ones, ranges, and triangular masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from treadle_codegen.ir.loops import IntLike
from treadle_codegen.ir.ops import INTS, compute_dtype
from treadle_codegen.lower.context import Lowering
from treadle_codegen.lower.indexing import as_intlike, as_shape, is_dense
from treadle_codegen.lower.loop_builder import LoopBuilder, number
from treadle_codegen.lower.registry import lowering
from treadle_codegen.lower.tensor_expr import Index, TensorExpr
from treadle_shapes.expr import Expr
from treadle_shapes.floats import FloatExpr


def _filled(lw: Lowering, value: Any) -> TensorExpr | None:
    """A tensor like the node's fake result, of one number."""
    if isinstance(value, torch.SymInt):
        value = as_intlike(value)
    if isinstance(value, FloatExpr) and lw.val.dtype.is_floating_point:
        return lw.full(as_shape(lw.val.shape), value, lw.val.dtype)
    if not isinstance(value, (bool, int, float, Expr)):
        return None
    if lw.val.dtype in INTS and (isinstance(value, float) and not math.isfinite(value)):
        return None
    if lw.val.dtype in INTS and not isinstance(value, Expr) and number(value, lw.val.dtype) != int(value):
        return None
    return lw.full(as_shape(lw.val.shape), value, lw.val.dtype)


@lowering("aten.full.default", symbolic_floats=True)
def full(lw: Lowering, size: Sequence[Any], fill_value: Any, **_: Any) -> TensorExpr | None:
    return _filled(lw, fill_value)


@lowering("aten.full_like.default", "aten.new_full.default", symbolic_floats=True)
def full_like(lw: Lowering, x: TensorExpr, *args: Any, **_: Any) -> TensorExpr | None:
    return _filled(lw, args[-1])


@lowering("aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default")
def zeros(lw: Lowering, *_args: Any, **_: Any) -> TensorExpr | None:
    return _filled(lw, 0)


@lowering("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def ones(lw: Lowering, *_args: Any, **_: Any) -> TensorExpr | None:
    return _filled(lw, 1)


@lowering("aten.empty.memory_format", "aten.empty_like.default", "aten.new_empty.default", "aten.empty_strided.default",
          "aten.new_empty_strided.default", "aten.empty_permuted.default")  # fmt: skip
def empty(lw: Lowering, *_args: Any, **_: Any) -> TensorExpr | None:
    # Unspecified contents: zeros cost nothing when they are overwritten or fused, and runs stay repeatable.
    if not is_dense(as_shape(lw.val.shape), as_shape(lw.val.stride())):
        return None
    return _filled(lw, 0)


@lowering("aten.scalar_tensor.default", symbolic_floats=True)
def scalar_tensor(lw: Lowering, value: Any, **_: Any) -> TensorExpr | None:
    return _filled(lw, value)


@lowering("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
def arange(lw: Lowering, *args: Any, **_: Any) -> TensorExpr | None:
    start, step = (0, 1) if len(args) == 1 else (args[0], args[2] if len(args) > 2 else 1)
    dtype = compute_dtype(lw.val.dtype)
    if isinstance(start, (int, Expr)) and isinstance(step, (int, Expr)) and not isinstance(start, bool):
        return _iota(lw, start, step)
    if dtype in INTS:
        return None

    def element(o: LoopBuilder, index: Index) -> int:
        # In eager, position and products are float64 for float64 and the accumulate type (float64 on CPU) for float32.
        position = o.cast(o.index(index[0]), torch.float64)
        offset = o.op("mul", position, o.const(step, torch.float64))
        return o.cast(o.op("add", o.const(start, torch.float64), offset), dtype)

    return TensorExpr.computed(as_shape(lw.val.shape), lw.val.dtype, element, 2)


def _iota(lw: Lowering, start: IntLike, step: IntLike) -> TensorExpr:
    dtype = compute_dtype(lw.val.dtype)

    def element(o: LoopBuilder, index: Index) -> int:
        return o.cast(o.index(index[0] * step + start), dtype)

    return TensorExpr.computed(as_shape(lw.val.shape), lw.val.dtype, element, 1)


@lowering("prims.iota.default")
def iota(lw: Lowering, length: Any, *, start: Any, step: Any, **_: Any) -> TensorExpr:
    return _iota(lw, as_intlike(start), as_intlike(step))


@lowering("aten.eye.default", "aten.eye.m")
def eye(lw: Lowering, *_args: Any, **_: Any) -> TensorExpr:
    dtype = compute_dtype(lw.val.dtype)

    def element(o: LoopBuilder, index: Index) -> int:
        return o.cast(o.op("eq", o.index(index[0]), o.index(index[1])), dtype)

    return TensorExpr.computed(as_shape(lw.val.shape), lw.val.dtype, element, 1)


def _triangle(lw: Lowering, x: TensorExpr, comparison: str, diagonal: int) -> TensorExpr:
    """Keep elements where `column - row` compares to `diagonal`, zero elsewhere."""

    def element(o: LoopBuilder, index: Index) -> int:
        value = x.element(o, index)
        gap = o.op("sub", o.index(index[-1]), o.index(index[-2]))
        return o.op("where", o.op(comparison, gap, o.number(diagonal, torch.int64)), value, o.like(0, value))

    return TensorExpr.computed(x.shape, x.dtype, element, x.cost + 2, x.reads)


@lowering("aten.tril.default")
def tril(lw: Lowering, x: TensorExpr, diagonal: int = 0) -> TensorExpr:
    return _triangle(lw, x, "le", diagonal)


@lowering("aten.triu.default")
def triu(lw: Lowering, x: TensorExpr, diagonal: int = 0) -> TensorExpr:
    return _triangle(lw, x, "ge", diagonal)
