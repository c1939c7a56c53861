"""Products of small or narrow matrices are loops: a call of ATen takes longer than the multiplications, and ends a kernel.

    y = mm(a, b)        a: [m, k], b: [k, n]        y[i, j] = sum over r of a[i, r] * b[r, j]

Rotations and transformations of points, filters and controllers, small networks. One thread of an EPYC, torch 2.13, float32, microseconds
of a graph that adds 1 to the product, with `mm` and `bmm` of ATen, and as a loop; the right matrix row-major, transposed:

    mm     8 x 8 x 8              3.4, 4.4     2.0, 2.0        bmm    1000 times 3 x 3 x 3      49, 38     5.8, 6.4
           32 x 32 x 32           4.1, 5.3     2.9, 3.2               1000 times 4 x 4 x 1      18, 20     3.6, 3.6
           64 x 64 x 64           9.2, 10.4    9.0, 9.7               100 times 8 x 8 x 8       15, 20     3.4, 5.5
           10,000 x 3 x 3         77, 119      5.0, 5.0               100 times 16 x 16 x 16    24, 27     11, 26
           1000 x 16 x 64         34, 36       25, 26                 100 times 1 x 16 x 16     32, 15     3.0, 9.1
           1000 x 32 x 32         30, 32       33, 34
"""

from __future__ import annotations

import torch

from treadle_codegen.ir.loops import IntLike
from treadle_codegen.ir.ops import FLOATS, LOW_FLOATS, compute_dtype
from treadle_codegen.lower.context import Lowering
from treadle_codegen.lower.indexing import Shape
from treadle_codegen.lower.loop_builder import LoopBuilder
from treadle_codegen.lower.tensor_expr import TensorExpr
from treadle_codegen.lower.view import expand, insert, permute

_UNROLLED_TERMS = 4  # one expression adds them up
_MOST_TERMS = 64
_MOST_MULTIPLICATIONS = 1 << 17  # of one product
_MOST_LOW_MULTIPLICATIONS = 1 << 15  # of 16 bits, which take longer to convert than to multiply
# The sums of a few columns stay in registers for so many terms, whatever the number of rows.
_FEW_TERMS = 16
_FEW_COLUMNS = 64
_FEW_ELEMENTS = 256  # of a matrix in a batch
# A product of so few sums is a reduction, however many terms these have (the gradient of a rotation of points: 3 x 5000 x 3 takes 12 us, 23
# by `mm`).
_FEW_SUMS = 16
_MOST_SUMMED = 1 << 14


def small_product(lw: Lowering, left: TensorExpr, right: TensorExpr, dtype: torch.dtype) -> TensorExpr:
    """The product of `[..., m, k]` and `[..., k, n]`, for which `why_not_small` is None."""
    batch, wide = left.dim - 2, compute_dtype(lw.val.dtype)
    lw.realize(left)
    rows, terms, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    assert isinstance(terms, int)
    is_transposed = lw.realize(right).strides[-1] != 1
    if is_transposed and 1 not in (rows, columns) and terms > _UNROLLED_TERMS and not _has_few_sums(rows, columns):
        right = lw.copy(right)  # sums side by side read neighbours; the copy is less work than the product
    shape = (*left.shape[:-1], columns, terms)
    turned = right.view(permute(right.shape, (*range(batch), batch + 1, batch)))
    factors = [_spread(left, batch + 1, shape), _spread(turned, batch, shape)]
    products = lw.pointwise(multiply, factors, wide, shape=shape, compute=wide)
    return lw.reduce("sum", products, [batch + 2], dtype=dtype, accumulate=wide)


def _has_few_sums(rows: IntLike, columns: IntLike) -> bool:
    return isinstance(rows, int) and isinstance(columns, int) and rows * columns <= _FEW_SUMS


def _spread(factor: TensorExpr, dim: int, shape: Shape) -> TensorExpr:
    """The same matrix for every position of a new dimension."""
    inserted = factor.view(insert(factor.shape, dim))
    return inserted.view(expand(inserted.shape, shape))


def multiply(o: LoopBuilder, a: int, b: int) -> int:
    """A term of a product of matrices."""
    return o.op("mul", a, b)


def why_not_small(left: Shape, right: Shape, dtype: torch.dtype) -> str | None:
    """Why ATen multiplies matrices, or batches of them, of these shapes; None if a loop does."""
    if dtype not in FLOATS | LOW_FLOATS:
        return f"no sums of {dtype}"
    *batch, rows, terms = left
    columns, is_low = right[-1], dtype in LOW_FLOATS
    if not isinstance(terms, int) or 0 in (*left, *right):
        return "nobody knows how many terms, or nothing to multiply"
    if terms <= _UNROLLED_TERMS:
        return None
    if not isinstance(columns, int):
        return "nobody knows how many columns"
    if batch:
        is_small = isinstance(rows, int) and rows * columns <= _FEW_ELEMENTS
        return None if is_small and terms <= (_FEW_TERMS // 2 if is_low else _FEW_TERMS) else "large matrices"
    if terms <= _FEW_TERMS and columns <= _FEW_COLUMNS and not is_low:
        return None
    if _has_few_sums(rows, columns) and terms <= _MOST_SUMMED:
        return None
    most = _MOST_LOW_MULTIPLICATIONS if is_low else _MOST_MULTIPLICATIONS
    is_small = isinstance(rows, int) and terms <= _MOST_TERMS and rows * terms * columns <= most
    return None if is_small else "large matrices"
