"""Products of a matrix and a vector, as a model computes them for one token: sums of what a loop multiplies.

    y = mm(x, w.t())        x: [1, k], w: [n, k]        y[0, j] = sum over r of x[0, r] * w[j, r]

Reading the matrix takes all the time. A loop that walks it from its first element to its last reads faster than BLAS and oneDNN, which
read several rows at once (one thread of an EPYC, matrices that are in no cache: about 14 to 23 GB/s instead of 7 to 15 in float32, 7 to
19 instead of 4 to 9 in bfloat16), and what follows runs in the same kernel.
"""

from __future__ import annotations

from typing import Any

import torch

from treadle_codegen.ir.loops import View
from treadle_codegen.ir.ops import FLOATS, LOW_FLOATS, compute_dtype
from treadle_codegen.lower.context import Lowering
from treadle_codegen.lower.indexing import as_shape
from treadle_codegen.lower.loop_builder import LoopBuilder
from treadle_codegen.lower.registry import lowering
from treadle_codegen.lower.tensor_expr import TensorExpr
from treadle_codegen.lower.view import permute

_FEW_TERMS = 64  # the sum of a shorter row takes longer than its products


@lowering("aten.mm.default", "aten.bmm.default")
def product_of_two(lw: Lowering, left: TensorExpr, right: TensorExpr) -> TensorExpr | None:
    return _product(lw, left, right, lw.val.dtype)


@lowering("aten.addmm.default", "aten.baddbmm.default")
def product_added(
    lw: Lowering, added: TensorExpr, left: TensorExpr, right: TensorExpr, *, beta: Any = 1, alpha: Any = 1
) -> TensorExpr | None:
    if beta != 1 or alpha != 1:
        return None
    wide = compute_dtype(lw.val.dtype)
    product = _product(lw, left, right, wide)
    if product is None:
        return None
    shape = as_shape(lw.val.shape)
    return lw.pointwise(lambda o, a, b: o.op("add", a, b), [product, added], lw.val.dtype, shape=shape, compute=wide)


def _product(lw: Lowering, left: TensorExpr, right: TensorExpr, dtype: torch.dtype) -> TensorExpr | None:
    """The product as a stored tensor of `dtype`; None for one that ATen computes."""
    if why_not_loop(lw, left, right) is not None:
        return None
    batch, wide = left.dim - 2, compute_dtype(lw.val.dtype)
    swapped = (*range(batch), batch + 1, batch)
    right = right.view(permute(right.shape, swapped))  # terms come last in both
    is_row = left.shape[batch] == 1
    vector, matrix = (left, right) if is_row else (right, left)
    lw.realize(vector)
    terms = lw.pointwise(_multiply, [vector, matrix], wide, shape=matrix.shape, compute=wide)
    total = lw.reduce("sum", terms, [batch + 1], keepdim=True, dtype=dtype, accumulate=wide)
    return total.view(permute(total.shape, swapped)) if is_row else total


def _multiply(o: LoopBuilder, a: int, b: int) -> int:
    return o.op("mul", a, b)


def why_not_loop(lw: Lowering, left: TensorExpr, right: TensorExpr) -> str | None:
    """Why ATen multiplies, or None: one factor is a vector, and the other one's rows stand in memory one after the other."""
    if not lw.costs.vector_products:
        return "products of the target's own"
    if lw.val.dtype not in FLOATS | LOW_FLOATS:
        return f"no sums of {lw.val.dtype}"
    if left.shape[-2] == 1:
        matrix, step = right.storage, -2
    elif right.shape[-1] == 1:
        matrix, step = left.storage, -1
    else:
        return "two matrices"
    if matrix is None or lw.buffers[matrix.buffer].opaque:
        return "a matrix that is not in memory"
    terms = left.shape[-1]
    if not isinstance(terms, int) or terms < _FEW_TERMS or 0 in (*left.shape, *right.shape):
        return "few terms, or nobody knows how many"
    return None if _are_rows(matrix, step) else "terms that are no neighbours in memory"


def _are_rows(matrix: View, step: int) -> bool:
    """Whether elements along dimension `step` are neighbours, rows of them one after the other, and matrices of a batch not the same."""
    other = -1 if step == -2 else -2
    several = [stride for size, stride in zip(matrix.shape[:-2], matrix.strides[:-2], strict=True) if size != 1]
    follow = matrix.shape[other] == 1 or matrix.strides[other] == matrix.shape[step]
    return matrix.strides[step] == 1 and follow and 0 not in several
