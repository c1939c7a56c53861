"""Matrix products as loops: `reduce dot` sums the products of two values over the reduce axes.

One value varies along the rows and the other along the columns of the result, both along the reduce axes and the batch axes:

    loop mm_0 [i0:64, i1:32] reduce [r0:128]
      %0 = load x[128*i0 + r0] : bfloat16
      %1 = load w[i1 + 32*r0] : bfloat16
      %2 = reduce dot %0 %1 : float32
      %3 = cast %2 : bfloat16
      store y[32*i0 + i1] %3

It is fused as other loops are: what follows point by point runs on the finished sums (`schedule.fuse`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from treadle_codegen.ir.loops import Axis, Instr, Load, Loop, symbols_of
from treadle_codegen.ir.ops import PRODUCTS
from treadle_shapes.expr import Symbol


@dataclass(frozen=True, slots=True)
class Product:
    """The matrix product in a loop: `position` of its instruction in the body, and the role of each of the loop's axes."""

    position: int
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]


def is_product(loop: Loop) -> bool:
    """Whether the loop is a matrix product."""
    return any(instr.op == "reduce" and instr.attr in PRODUCTS for instr in loop.body)


def uses_tf32(loop: Loop) -> bool:
    """Whether the loop is a matrix product whose factors may be rounded to TF32."""
    return any(instr.op == "reduce" and instr.attr == "dot_tf32" for instr in loop.body)


def product_of(loop: Loop) -> Product | str:
    """The loop's matrix product, or why it is none."""
    positions = [k for k, instr in enumerate(loop.body) if instr.op == "reduce"]
    if len(positions) != 1 or loop.body[positions[0]].attr not in PRODUCTS:
        return "a matrix product is the only reduction of its loop"
    dot = loop.body[positions[0]]
    if len(dot.args) != 2:
        return f"a matrix product of {len(dot.args)} values"
    left, right = varies_along(loop, dot.args[0]), varies_along(loop, dot.args[1])
    if not all(axis.symbol in left & right for axis in loop.reduce_axes):
        return "a value of a matrix product does not vary along its reduce axes"
    if any(axis.symbol not in left | right for axis in loop.axes):
        return "no value of the matrix product varies along one of its axes"
    batch = tuple([axis for axis in loop.axes if axis.symbol in left & right])
    rows = tuple([axis for axis in loop.axes if axis.symbol not in right])
    columns = tuple([axis for axis in loop.axes if axis.symbol not in left])
    if not rows or not columns:
        return "a matrix product without rows or columns"
    return Product(positions[0], batch, rows, columns)


def why_not_product(loop: Loop) -> str | None:
    """Why the loop is no valid matrix product, or None."""
    found = product_of(loop)
    return found if isinstance(found, str) else None


def index_of(instr: Instr) -> Any:
    """The index expressions of a value."""
    if isinstance(instr.attr, Load):
        return instr.attr.index
    if instr.op == "masked_load":
        return (instr.attr[0].index, instr.attr[1])
    return instr.attr if instr.op == "index" else None


def varies_along(loop: Loop, position: int) -> frozenset[Symbol]:
    """The symbols of the loop's axes along which an instruction's value varies."""
    axes = {axis.symbol for axis in (*loop.axes, *loop.reduce_axes)}
    found: list[frozenset[Symbol]] = []
    for instr in loop.body[: position + 1]:
        found.append((symbols_of(index_of(instr)) & axes).union(*[found[argument] for argument in instr.args]))
    return found[position]
