"""Products of a matrix and a vector, as a model computes them for one token: sums of what a loop multiplies.

    y = mm(x, w.t())        x: [1, k], w: [n, k]        y[0, j] = sum over r of x[0, r] * w[j, r]

Reading the matrix takes all the time. A loop that walks it from its first element to its last reads faster than BLAS and oneDNN, which
read several rows at once (one thread of an EPYC, matrices that are in no cache: about 14 to 23 GB/s instead of 7 to 15 in float32, 7 to
19 instead of 4 to 9 in bfloat16), and what follows runs in the same kernel. Where terms are the rows of the matrix (the weights of GPT-2),
sums grow side by side (`targets.cpp.columns`).

A few rows times a large matrix are as many such products, which share a loop and read the matrix once. GB/s of `mm` and of the loops in
float32, 24 and 11 matrices that are in no cache, one thread of an EPYC:

    terms, columns      row-major, rows: 1      2        3        4         transposed, rows: 1      2        3        4
    768, 3072               15, 17      9, 18    8, 14    5, 12                   11, 21      5, 17    4, 15    5, 12
    2048, 2048              14, 18      9, 18    5, 12    5, 12                   15, 22      6, 10    4, 8     7, 7

Weights of three and four rows are packed for oneDNN where that is allowed (`targets.cpp.pack_linear`), and multiplied by loops elsewhere.
"""

from __future__ import annotations

from typing import Any

import torch

from treadle_codegen.ir.loops import View
from treadle_codegen.ir.ops import FLOATS, LOW_FLOATS, compute_dtype
from treadle_codegen.lower.context import Lowering, view_of
from treadle_codegen.lower.indexing import Shape, as_shape
from treadle_codegen.lower.normalize import converted
from treadle_codegen.lower.registry import lowering
from treadle_codegen.lower.small_product import multiply, small_product, why_not_small
from treadle_codegen.lower.tensor_expr import TensorExpr
from treadle_codegen.lower.view import insert, narrow, permute, reshape, select

_MOST_ROWS = 4  # vectors that one matrix is multiplied by
_MOST_LOW_ROWS = 2  # of 16 bits, which take longer to convert than to read
_FEW_TERMS = 64  # the sum of a shorter row takes longer than its products
_FEW_SUMS = 64
_LARGE_MATRIX = 1 << 14
# Of vectors that are read again for each row of the matrix: they share a first-level cache with it.
_CACHED_BYTES = 24 << 10


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


@lowering("aten.mv.default")
def product_with_vector(lw: Lowering, matrix: TensorExpr, vector: TensorExpr) -> TensorExpr | None:
    product = _product(lw, matrix, _as_column(vector), lw.val.dtype)
    return None if product is None else product.view(select(product.shape, 1, 0))


@lowering("aten.dot.default", "aten.vdot.default")
def product_of_vectors(lw: Lowering, left: TensorExpr, right: TensorExpr) -> TensorExpr | None:
    product = _product(lw, left.view(insert(left.shape, 0)), _as_column(right), lw.val.dtype)
    return None if product is None else product.view(reshape(product.shape, ()))


def _as_column(vector: TensorExpr) -> TensorExpr:
    return vector.view(insert(vector.shape, 1))


def _product(lw: Lowering, left: TensorExpr, right: TensorExpr, dtype: torch.dtype) -> TensorExpr | None:
    """The product as a stored tensor of `dtype`; None for one that ATen computes."""
    if lw.costs.small_products and why_not_small(left.shape, right.shape, lw.val.dtype) is None:
        return small_product(lw, left, right, dtype)
    if why_not_loop(lw, left, right) is not None:
        return None
    if 1 in (left.shape[-2], right.shape[-1]):
        return _with_vector(lw, left, right, dtype)
    rows, columns = left.shape[0], right.shape[1]
    assert isinstance(rows, int)
    product = lw.new_buffer((rows, columns), dtype)
    lw.realize(left)
    for k in range(rows):  # they become one loop nest, because they read the same matrix
        row = _with_vector(lw, left.view(narrow(left.shape, 0, k, 1)), right, dtype)
        lw.write_into(View(product.name, row.shape, product.strides, k * product.strides[0]), row)
    return TensorExpr.stored(view_of(product), dtype)


def _with_vector(lw: Lowering, left: TensorExpr, right: TensorExpr, dtype: torch.dtype) -> TensorExpr:
    batch, wide = left.dim - 2, compute_dtype(lw.val.dtype)
    swapped = (*range(batch), batch + 1, batch)
    right = right.view(permute(right.shape, swapped))  # terms come last in both
    is_row = left.shape[batch] == 1
    vector, matrix = (left, right) if is_row else (right, left)
    lw.realize(vector)
    if vector.dtype in LOW_FLOATS:  # converted once, and not again for each row of the matrix
        vector = converted(lw, vector, wide)
        lw.realize(vector)
    terms = lw.pointwise(multiply, [vector, matrix], wide, shape=matrix.shape, compute=wide)
    total = lw.reduce("sum", terms, [batch + 1], keepdim=True, dtype=dtype, accumulate=wide)
    return total.view(permute(total.shape, swapped)) if is_row else total


def why_not_loop(lw: Lowering, left: TensorExpr, right: TensorExpr) -> str | None:
    """Why ATen multiplies, or None: one factor is a vector, or a few of them, and the other one lies in memory in one piece."""
    if not lw.costs.vector_products:
        return "products of the target's own"
    if lw.val.dtype not in FLOATS | LOW_FLOATS:
        return f"no sums of {lw.val.dtype}"
    is_column = right.shape[-1] == 1 and left.shape[-2] != 1
    matrix, step = (left.storage, -1) if is_column else (right.storage, -2)
    if matrix is None or lw.buffers[matrix.buffer].opaque:
        return "a matrix that is not in memory"
    terms = left.shape[-1]
    if not isinstance(terms, int) or terms < _FEW_TERMS or 0 in (*left.shape, *right.shape):
        return "few terms, or nobody knows how many"
    if left.shape[-2] != 1 and not is_column:
        return why_not_few_rows(left.shape, right.shape, matrix.strides, lw.val.dtype)
    return None if _are_rows(matrix, step) or _are_columns(matrix, step) else "gaps, or terms that are gathered"


def why_not_few_rows(left: Shape, right: Shape, strides: Shape, dtype: torch.dtype) -> str | None:
    """Why a product of two matrices is not one of a few vectors with a matrix so large that reading this takes nearly all the time."""
    if len(left) != 2 or not all(isinstance(n, int) for n in (*left, *right)):
        return "a batch of products, or symbolic sizes"
    (rows, terms), (_, columns) = left, right
    if (
        rows > (_MOST_LOW_ROWS if dtype in LOW_FLOATS else _MOST_ROWS)
        or terms < _FEW_TERMS
        or terms * columns < _LARGE_MATRIX
    ):
        return "two matrices"
    if strides == (columns, 1):
        return None if columns >= _FEW_SUMS else "too few columns"
    if strides != (1, terms):
        return "gaps between rows, or terms that are gathered"
    return "the vectors do not stay in the caches" if rows * terms * dtype.itemsize > _CACHED_BYTES else None


def _are_rows(matrix: View, step: int) -> bool:
    """Whether elements along dimension `step` are neighbours, rows of them one after the other, and matrices of a batch not the same."""
    other = -1 if step == -2 else -2
    follow = matrix.shape[other] == 1 or matrix.strides[other] == matrix.shape[step]
    return matrix.strides[step] == 1 and follow and not _is_repeated(matrix)


def _are_columns(matrix: View, step: int) -> bool:
    """Whether elements along the other dimension are neighbours, so many that vectors of sums grow side by side."""
    other = -1 if step == -2 else -2
    sums = matrix.shape[other]
    is_wide = isinstance(sums, int) and sums >= _FEW_SUMS
    return is_wide and matrix.strides[other] == 1 and matrix.strides[step] == sums and not _is_repeated(matrix)


def _is_repeated(matrix: View) -> bool:
    """Whether matrices of a batch are the same."""
    batch = zip(matrix.shape[:-2], matrix.strides[:-2], strict=True)
    return any(size != 1 and stride == 0 for size, stride in batch)
