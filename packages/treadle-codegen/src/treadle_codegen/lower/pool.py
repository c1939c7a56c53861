"""Pooling, windows unrolled: each output element reads its few inputs, vectorised over outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from treadle_codegen.ir.loops import IntLike
from treadle_codegen.ir.ops import FLOATS, compute_dtype
from treadle_codegen.lower.cat import element_or
from treadle_codegen.lower.context import Lowering
from treadle_codegen.lower.indexing import as_shape
from treadle_codegen.lower.loop_builder import LoopBuilder
from treadle_codegen.lower.moments import mean_of
from treadle_codegen.lower.registry import lowering
from treadle_codegen.lower.tensor_expr import Index, TensorExpr
from treadle_codegen.lower.view import reshape
from treadle_shapes.expr import maximum, minimum


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    items = list(value)
    return (items[0], items[0]) if len(items) == 1 else (items[0], items[1])


def _window(
    o: LoopBuilder, x: TensorExpr, index: Index, geometry: tuple[tuple[int, int], ...], outside: float
) -> list[int]:
    """The scalars under the window of output `index`; positions in the padding give `outside`."""
    kernel, stride, padding, dilation = geometry
    values = []
    *lead, row, column = index
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            at = (
                *lead,
                row * stride[0] - padding[0] + i * dilation[0],
                column * stride[1] - padding[1] + j * dilation[1],
            )
            values.append(element_or(o, x, at, [x.dim - 2, x.dim - 1], outside))
    return values


def in_pairs(o: LoopBuilder, op: str, values: list[int]) -> int:
    """Combine in pairs: short dependency chains."""
    while len(values) > 1:
        values = [o.op(op, *values[k : k + 2]) if k + 1 < len(values) else values[k] for k in range(0, len(values), 2)]
    return values[0]


@lowering("aten.max_pool2d_with_indices.default")
def max_pool2d(
    lw: Lowering,
    x: TensorExpr,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> tuple[TensorExpr, TensorExpr] | None:
    out, positions = lw.val
    kernel = _pair(kernel_size)
    if compute_dtype(x.dtype) not in FLOATS or kernel[0] * kernel[1] > lw.costs.max_window or 1 in lw.used_results:
        return None
    geometry = (kernel, _pair(stride) if stride else kernel, _pair(padding), _pair(dilation))
    if x.cost:
        lw.realize(x)

    def element(o: LoopBuilder, index: Index) -> int:
        return in_pairs(o, "maximum", _window(o, x, index, geometry, -math.inf))

    values = TensorExpr.computed(as_shape(out.shape), x.dtype, element, 8 * len(kernel), x.reads)
    return values, lw.full(as_shape(positions.shape), 0, positions.dtype)


@lowering("aten.avg_pool2d.default")
def avg_pool2d(
    lw: Lowering, x: TensorExpr, kernel_size: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> TensorExpr | None:  # fmt: skip
    kernel = _pair(kernel_size)
    dtype = compute_dtype(x.dtype)
    if dtype not in FLOATS or kernel[0] * kernel[1] > lw.costs.max_window:
        return None
    geometry = (kernel, _pair(stride) if stride else kernel, _pair(padding), (1, 1))
    if x.cost:
        lw.realize(x)

    def element(o: LoopBuilder, index: Index) -> int:
        total = in_pairs(o, "add", _window(o, x, index, geometry, 0.0))
        count = divisor_override or _divisor(x, index, geometry, count_include_pad)
        return o.op("div", total, o.cast(o.index(count), dtype))

    return TensorExpr.computed(as_shape(lw.val.shape), x.dtype, element, 16, x.reads)


def _divisor(x: TensorExpr, index: Index, geometry: tuple[tuple[int, int], ...], include_pad: bool) -> IntLike:
    """How many elements ATen divides by: those of the window inside the (padded) input."""
    kernel, stride, padding, _ = geometry
    count: IntLike = 1
    for k in range(2):
        size, start = x.shape[x.dim - 2 + k], index[len(index) - 2 + k] * stride[k] - padding[k]
        end = minimum(start + kernel[k], size + padding[k])
        if not include_pad:
            start, end = maximum(start, 0), minimum(end, size)
        count = count * (end - start)
    return count


@lowering("aten._adaptive_avg_pool2d.default", "aten.adaptive_avg_pool2d.default")
def adaptive_avg_pool2d(lw: Lowering, x: TensorExpr, output_size: Sequence[Any]) -> TensorExpr | None:
    *lead, height, width = x.shape
    rows, columns = as_shape(output_size)
    sizes = (height, width, rows, columns)
    if compute_dtype(x.dtype) not in FLOATS or not all(isinstance(s, int) for s in sizes) or 0 in x.shape:
        return None
    if height % rows or width % columns:
        return None  # windows of different sizes
    n = len(lead)
    split = x.view(reshape(x.shape, (*lead, rows, height // rows, columns, width // columns)))
    return mean_of(lw, split, [n + 1, n + 3], False, x.dtype)
