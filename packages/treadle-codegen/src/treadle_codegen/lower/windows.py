"""Windows of images as columns, and columns added up to an image (`unfold` and `fold` of torch.nn.functional).

    columns[n, (c, i, j), (row, column)] = image[n, c, row * stride - padding + i * dilation, column * stride - padding + j * dilation]

PyTorch gathers through tables of positions, from a padded copy; a loop over six axes needs neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle_codegen.ir.ops import FLOATS, compute_dtype
from treadle_codegen.lower.cat import element_or
from treadle_codegen.lower.context import Lowering
from treadle_codegen.lower.indexing import as_shape
from treadle_codegen.lower.loop_builder import LoopBuilder
from treadle_codegen.lower.pool import in_pairs
from treadle_codegen.lower.registry import lowering
from treadle_codegen.lower.tensor_expr import Index, TensorExpr
from treadle_codegen.lower.view import reshape

_COST = 4  # of an element: a read, in the image or not


@lowering("aten.im2col.default")
def im2col(
    lw: Lowering,
    x: TensorExpr,
    kernel_size: Sequence[Any],
    dilation: Sequence[Any],
    padding: Sequence[Any],
    stride: Sequence[Any],
) -> TensorExpr | None:
    kernel, step, start, apart = map(as_shape, (kernel_size, stride, padding, dilation))
    *lead, _, _ = x.shape
    sizes = [_count(x.shape[x.dim - 2 + k], kernel[k], step[k], start[k], apart[k]) for k in range(2)]
    if not all(isinstance(n, int) for n in (*kernel, *step, *start, *apart)):
        return None
    if x.cost:
        lw.realize(x)

    def element(o: LoopBuilder, index: Index) -> int:
        *outer, i, j, row, column = index
        at = (*outer, row * step[0] - start[0] + i * apart[0], column * step[1] - start[1] + j * apart[1])
        return element_or(o, x, at, [x.dim - 2, x.dim - 1], 0)

    shape = (*lead, *kernel, *sizes)
    windows = TensorExpr.computed(shape, x.dtype, element, _COST, x.reads)
    return windows.view(reshape(shape, as_shape(lw.val.shape)))


def _count(size: Any, kernel: Any, step: Any, start: Any, apart: Any) -> Any:
    """How many windows there are along an axis."""
    return (size + 2 * start - apart * (kernel - 1) - 1) // step + 1


@lowering("aten.col2im.default")
def col2im(
    lw: Lowering,
    x: TensorExpr,
    output_size: Sequence[Any],
    kernel_size: Sequence[Any],
    dilation: Sequence[Any],
    padding: Sequence[Any],
    stride: Sequence[Any],
) -> TensorExpr | None:
    """Each element of the image adds up what windows hold of it. Windows that are more than one element apart are left to ATen: most of
    them hold nothing of an element."""
    kernel, step, start, apart = map(as_shape, (kernel_size, stride, padding, dilation))
    if not all(isinstance(n, int) for n in (*kernel, *step, *start, *apart)) or step != (1, 1):
        return None
    dtype = compute_dtype(x.dtype)
    if dtype not in FLOATS or kernel[0] * kernel[1] > lw.costs.max_window:  # type: ignore[operator]
        return None
    *lead, height, width = as_shape(lw.val.shape)
    sizes = [_count(n, kernel[k], 1, start[k], apart[k]) for k, n in enumerate((height, width))]
    lw.realize(x)
    windows = x.view(reshape(x.shape, (*lead, *kernel, *sizes)))

    def element(o: LoopBuilder, index: Index) -> int:
        *outer, row, column = index
        values = []
        for i in range(kernel[0]):  # type: ignore[arg-type]
            for j in range(kernel[1]):  # type: ignore[arg-type]
                at = (*outer, i, j, row + start[0] - i * apart[0], column + start[1] - j * apart[1])
                values.append(element_or(o, windows, at, [windows.dim - 2, windows.dim - 1], 0.0))
        return in_pairs(o, "add", values)

    return TensorExpr.computed(as_shape(lw.val.shape), x.dtype, element, 4 * kernel[0] * kernel[1], x.reads)  # type: ignore[operator]
