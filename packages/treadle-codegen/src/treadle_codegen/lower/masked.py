"""Writes where a mask is true: `x[mask] = value`, `x[:, mask] += row`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from treadle_codegen.ir.ops import FLOATS, INTS, LOW_FLOATS, compute_dtype
from treadle_codegen.lower.context import Lowering
from treadle_codegen.lower.indexing import broadcasts_to
from treadle_codegen.lower.loop_builder import LoopBuilder
from treadle_codegen.lower.pointwise import where
from treadle_codegen.lower.tensor_expr import TensorExpr
from treadle_codegen.lower.view import insert


def is_mask(x: object) -> bool:
    """Whether this is a tensor of bools, which selects positions."""
    return isinstance(x, TensorExpr) and x.dtype == torch.bool


def put_at_mask(
    lw: Lowering, x: TensorExpr, indices: Sequence[TensorExpr | None], values: TensorExpr, accumulate: bool
) -> TensorExpr | None:
    """`aten.index_put` at one mask, of values that do not depend on which of the masked positions they go to; None for others.

    values    [*lead, 1, *rest] or what broadcasts to it, where `lead` and `rest` are the dimensions of `x` before and behind the mask's:
              ATen counts the positions where the mask is true in the dimension between
    """
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if len(given) != 1 or values.dtype != x.dtype:
        return None
    lead, mask = given[0]
    rest = x.dim - lead - mask.dim
    if mask.dim == 0 or rest < 0 or mask.shape != x.shape[lead : lead + mask.dim]:
        return None  # fake kernels do not compare the sizes
    spread = _with_dimensions_of_mask(values, rest, mask.dim)
    if spread is None or not broadcasts_to(spread.shape, x.shape):
        return None
    for _ in range(rest):
        mask = mask.view(insert(mask.shape, mask.dim))
    if accumulate:
        if x.dtype not in FLOATS | LOW_FLOATS | INTS:
            return None
        spread = lw.pointwise(_sum, [x, spread], x.dtype, shape=x.shape, compute=compute_dtype(x.dtype))
    return where(lw, mask, spread, x)


def _with_dimensions_of_mask(values: TensorExpr, rest: int, count: int) -> TensorExpr | None:
    """The values with a dimension of size 1 for each of the mask's; None where the masked positions have values of their own."""
    if values.dim <= rest:
        return values
    between = values.dim - rest - 1
    if values.shape[between] != 1:
        return None
    for _ in range(count - 1):
        values = values.view(insert(values.shape, between))
    return values


def _sum(o: LoopBuilder, a: int, b: int) -> int:
    return o.op("add", a, b)
