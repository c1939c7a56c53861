"""One loop nest while it is recorded: its axes, its body, and which memory layout of the result suits what it reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from treadle_codegen.ir.loops import Axis, IntLike
from treadle_codegen.lower.indexing import Shape, axis_symbol, product, slowest_first, stride_order
from treadle_codegen.lower.loop_builder import LoopBuilder
from treadle_codegen.lower.tensor_expr import Index
from treadle_shapes.expr import Expr, Symbol, linear_coefficients

LoopElement = Callable[[LoopBuilder, Index, dict[int, IntLike]], int]


@dataclass(slots=True)
class Nest:
    """Axes (slowest first, `dims` says which dimension of the result each walks), index of the result, body and value."""

    builder: LoopBuilder
    axes: tuple[Axis, ...]
    dims: tuple[int, ...]
    reduce_axes: tuple[Axis, ...]
    index: Index
    value: int


def record_nest(shape: Shape, strides: Shape, element: LoopElement, reduced: dict[int, IntLike]) -> Nest | None:
    """Record `element` over every index of a result with these strides; None if it has no elements."""
    if any(size == 0 for size in shape):
        return None
    o = LoopBuilder()
    index: list[IntLike] = [0] * len(shape)
    axes, dims = [], []
    for d in stride_order(shape, strides):
        if shape[d] != 1:
            symbol = axis_symbol(f"i{len(axes)}", shape[d])
            axes.append(Axis(symbol, shape[d]))
            dims.append(d)
            index[d] = symbol
    reduce_axes, at = [], {}
    for d, size in reduced.items():
        at[d] = 0
        if size != 1:
            symbol = axis_symbol(f"r{len(reduce_axes)}", size)
            reduce_axes.append(Axis(symbol, size))
            at[d] = symbol
    value = element(o, tuple(index), at)
    return Nest(o, tuple(axes), tuple(dims), tuple(reduce_axes), tuple(index), value)


@lru_cache(1 << 12)
def _step(index: Expr, symbol: Symbol) -> IntLike | None:
    """How far an index moves along an axis; None where that is not the same everywhere."""
    linear = linear_coefficients(index, [symbol])
    return None if linear is None else linear[0].get(symbol, 0)


def layout_of_reads(nest: Nest | None, shape: Shape, min_elements: int) -> Shape | None:
    """Strides of the result in the order in which memory is read, if every large read disagrees with the order of the nest.

    A result with fewer than `min_elements` elements keeps its strides.

    result [128, 56, 56] in rows, reads x[i0 + 14336*i1 + 256*i2]   ->   the result's first dimension becomes the fastest
    """
    total = product(shape)
    if nest is None or len(nest.axes) < 2 or (isinstance(total, int) and total < min_elements):
        return None
    innermost, symbols = nest.axes[-1].symbol, [axis.symbol for axis in (*nest.axes, *nest.reduce_axes)]
    other: list[IntLike] | None = None
    for instr in nest.builder.body:
        if instr.op not in ("load", "masked_load"):
            continue
        index = instr.attr.index if instr.op == "load" else instr.attr[0].index
        if not isinstance(index, Expr) or innermost not in index.free_symbols:
            continue  # the same element along the innermost axis
        if _step(index, innermost) in (1, None):
            return None
        linear = linear_coefficients(index, symbols)
        if linear is None:
            return None
        strides = [linear[0].get(axis.symbol, 0) for axis in nest.axes]
        if other is None and 1 in strides:
            other = strides
    if other is None:
        return None
    # A read that is the same along an axis (stride 0) does not mind where that axis goes: outermost.
    order = [k for k, s in enumerate(other) if s == 0]
    order += slowest_first([k for k, s in enumerate(other) if s != 0], other)
    result: list[IntLike] = [1] * len(shape)
    step: IntLike = 1
    for k in reversed(order):
        result[nest.dims[k]] = step
        step = step * shape[nest.dims[k]]
    for d, size in enumerate(shape):
        if size == 1:
            result[d] = step
    return tuple(result)
