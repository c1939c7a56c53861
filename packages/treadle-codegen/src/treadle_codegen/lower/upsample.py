"""Nearest upsampling by a whole factor: output position i shows input position i // factor.

Eager computes floor(i * scale) in floats (aten/src/ATen/native/UpSample.h, nearest_neighbor_compute_source_index, and
cpu/UpSampleKernel.cpp, HelperInterpNearest): scale is 1/factor rounded, or the quotient of the sizes, which is the same number.
Where that is not i // factor (`exact_below`), and for factors that are not whole, the operator is called through ATen.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from treadle_codegen.ir.loops import Check, IntLike
from treadle_codegen.lower.context import Lowering
from treadle_codegen.lower.indexing import as_shape
from treadle_codegen.lower.registry import lowering
from treadle_codegen.lower.tensor_expr import Index, TensorExpr, ViewMap
from treadle_shapes.expr import Le

# Beyond this a float32 does not hold every position.
LARGEST = 2**24
# How far factors that are no power of two are tried out.
TRIED = 2**22


@functools.cache
def exact_below(factor: int) -> int:
    """The output size up to which eager's floats agree with `i // factor`, in float32 and in float64 (rounded to float32 for `floorf`).

    Both sides grow with i, so it is enough to look at the first and the last position of each input position. Powers of two are
    exact for every position that a float32 holds.
    """
    if factor & (factor - 1) == 0:
        return LARGEST
    first = torch.arange(0, TRIED, factor)
    positions = torch.cat([first, first[1:] - 1])
    agrees = torch.ones(len(positions), dtype=torch.bool)
    for dtype in (torch.float32, torch.float64):
        product = positions.to(dtype) * torch.tensor(1.0 / factor, dtype=dtype)
        agrees &= product.float().floor().long() == positions // factor
    wrong = positions[~agrees]
    return int(wrong.min()) if len(wrong) else TRIED


def whole_factor(size: IntLike, out: IntLike, scale: float | None) -> int | None:
    """By what `out` is a multiple of `size` for all values of their symbols, if eager upsamples by it; None if it does not."""
    factor = out // size if size != 0 else 0
    if not isinstance(factor, int) or factor < 1 or size * factor != out:
        return None
    return factor if scale is None or scale == factor else None


def _require_exact(lw: Lowering, out: IntLike, factor: int) -> bool:
    """Whether positions below `out` are divided exactly: known, or checked when the graph runs."""
    limit = exact_below(factor)
    if isinstance(out, int):
        return out <= limit
    if limit < TRIED:
        return False
    message = f"upsampling to more than {limit} positions of a dimension, where eager's float32 positions are not exact"
    lw.steps.append(Check(lw.fresh("check_positions"), Le(out, limit), message))
    return True


@lowering("aten.upsample_nearest1d.default", "aten.upsample_nearest2d.default", "aten.upsample_nearest3d.default")
def upsample_nearest(lw: Lowering, x: TensorExpr, _size: Any, *scales: float | None) -> TensorExpr | None:
    target = as_shape(lw.val.shape)
    lead = 2
    given = [*scales, *[None] * (x.dim - lead)][: x.dim - lead]
    factors = [whole_factor(n, out, s) for n, out, s in zip(x.shape[lead:], target[lead:], given, strict=True)]
    if 0 in x.shape or None in factors:
        return None
    if not all(_require_exact(lw, out, f) for out, f in zip(target[lead:], factors, strict=True) if f):
        return None
    if x.cost > 1:
        lw.realize(x)

    def source(index: Index) -> Index:
        return (*index[:lead], *[i // f for i, f in zip(index[lead:], factors, strict=True) if f])

    return x.view(ViewMap(target, source, lambda view: None))
