"""Calls of BLAS as loops: the alternative to an extern that lets what follows run on the product's tiles.

    extern mm_0 aten.mm.out (view(x, [64, 128], ...), view(w, [128, 32], ...)) -> y
becomes
    loop mm_0 [i0:64, i1:32] reduce [r0:128]
      reduce dot of x[128*i0 + r0] and w[32*r0 + i1], cast, store y[32*i0 + i1]

A product with few elements and many terms may be cut along its terms (`splits`): partial products in float32, which a loop sums.
A matrix times a vector is an ordinary sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from treadle_codegen.ir.loops import Axis, Buffer, BufferKind, Extern, IntLike, Load, Loop, Program, Step, View
from treadle_codegen.ir.ops import PRODUCT_DTYPES
from treadle_codegen.lower.context import view_of
from treadle_codegen.lower.indexing import axis_symbol, contiguous, linear
from treadle_codegen.lower.loop_builder import LoopBuilder

aten = torch.ops.aten
Index = tuple[IntLike, ...]


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """`alpha * left @ right + beta * added`: the call of an operator of BLAS. Matrices have a batch dimension first, or none."""

    left: View
    right: View
    output: str
    added: View | None = None
    alpha: float = 1
    beta: float = 1

    @property
    def sizes(self) -> tuple[IntLike, IntLike, IntLike, IntLike]:
        """Batch, rows, columns, terms of each sum."""
        batch = self.left.shape[0] if len(self.left.shape) == 3 else 1
        return batch, self.left.shape[-2], self.right.shape[-1], self.left.shape[-1]


def _product(left: View, right: View, *, output: str) -> MatrixProduct:
    return MatrixProduct(left, right, output)


def _sum(added: View, left: View, right: View, *, output: str, alpha: float = 1, beta: float = 1) -> MatrixProduct:
    return MatrixProduct(left, right, output, added if beta != 0 else None, alpha, beta)


_READ_AS = {aten.mm: _product, aten.bmm: _product, aten.addmm: _sum, aten.baddbmm: _sum}


def matrix_product(step: Step, program: Program) -> MatrixProduct | str:
    """What a step multiplies, or why it can be no loop."""
    read = _READ_AS.get(step.op.overloadpacket) if isinstance(step, Extern) else None
    if read is None or not isinstance(step, Extern):
        return "no call of mm, bmm, addmm or baddbmm"
    if len(step.outputs) != 1 or not step.outputs[0] or not all(isinstance(a, View) for a in step.args):
        return "arguments that are no matrices"
    if not all(isinstance(v, (int, float)) for v in step.kwargs.values()):
        return "numbers that are known only at run time"
    try:
        found = read(*step.args, **step.kwargs, output=step.outputs[0])
    except TypeError:
        return "arguments that it does not know"
    views = [v for v in (found.left, found.right, found.added) if v is not None]
    buffers = [program.buffers[name] for name in (*[v.buffer for v in views], found.output)]
    if any(b.opaque or b.name in program.foreign for b in buffers):
        return "memory that loops do not reach"
    if len({b.dtype for b in buffers}) > 1 or buffers[0].dtype not in PRODUCT_DTYPES:
        return "dtypes of which there is no product"
    batch, rows, columns, terms = found.sizes
    if 0 in (batch, rows, columns) or terms in (0, 1):
        return "nothing to sum"
    return found


def with_loops(program: Program, splits: Mapping[str, int], tf32: bool) -> Program:
    """The program with the named externs as loops; `splits`: name -> into how many parts the sums are cut.

    tf32: whether factors of float32 may be rounded to TF32.
    """
    steps: list[Step] = []
    buffers = dict(program.buffers)
    for step in program.steps:
        found = matrix_product(step, program) if step.name in splits else None
        if isinstance(found, MatrixProduct) and isinstance(step, Extern):
            steps += _as_loops(step, found, buffers, splits[step.name], tf32)
        else:
            steps.append(step)
    return replace(program, buffers=buffers, steps=steps)


def _as_loops(step: Extern, product: MatrixProduct, buffers: dict[str, Buffer], splits: int, tf32: bool) -> list[Step]:
    out = buffers[product.output]
    if splits == 1 or not isinstance(product.sizes[3], int) or product.sizes[3] % splits:
        return [_loop(step, product, buffers, view_of(out), tf32)]
    shape = (splits, *out.shape)
    partial = Buffer(f"{out.name}_parts", torch.float32, shape, contiguous(shape), BufferKind.TEMP)
    buffers[partial.name] = partial
    return [
        _loop(step, product, buffers, view_of(partial), tf32, splits),
        _sum_of_parts(step, product, buffers, partial, splits),
    ]


def _axes(sizes: tuple[IntLike, ...], letter: str) -> tuple[tuple[Axis, ...], Index]:
    """Axes over the sizes that are not 1, and the index that they make."""
    axes: list[Axis] = []
    index: list[IntLike] = []
    for size in sizes:
        if size == 1:
            index.append(0)
        else:
            axes.append(Axis(axis_symbol(f"{letter}{len(axes)}", size), size))
            index.append(axes[-1].symbol)
    return tuple(axes), tuple(index)


def _loop(
    step: Extern, product: MatrixProduct, buffers: dict[str, Buffer], target: View, tf32: bool, splits: int = 1
) -> Loop:
    """The products, finished, or with `splits` the parts of them."""
    batch, rows, columns, terms = product.sizes
    assert splits == 1 or isinstance(terms, int)
    axes, (s, b, m, n) = _axes((splits, batch, rows, columns), "i")
    length: Any = terms if splits == 1 else terms // splits  # type: ignore[operator]
    reduced, (r,) = _axes((length,), "r")
    k = r + s * length
    o = LoopBuilder()
    dtype = buffers[product.left.buffer].dtype
    left = o.emit("load", dtype=dtype, attr=_load(product.left, (b, m, k)))
    right = o.emit("load", dtype=dtype, attr=_load(product.right, (b, k, n)))
    if rows == 1 or columns == 1:
        terms_ = o.op("mul", o.cast(left, torch.float32), o.cast(right, torch.float32))
        total = o.reduce("sum", terms_, torch.float32)
    else:
        kind = "dot_tf32" if tf32 and dtype == torch.float32 else "dot"
        total = o.dot(kind, left, right)
    if splits == 1:
        total = _finished(o, product, total, (b, m, n), dtype)
    place = (s, b, m, n)[4 - len(target.shape) :] if splits == 1 else _parts_index((s, b, m, n), target)
    o.store(target.buffer, linear(place, target.strides, target.offset), total, buffers[target.buffer].dtype)
    return Loop(step.name, axes, reduced, tuple(o.body), step.origins)


def _parts_index(index: Index, target: View) -> Index:
    """The index of a part, whose result has a batch dimension or not."""
    return index if len(target.shape) == 4 else (index[0], *index[2:])


def _load(view: View, index: Index) -> Any:
    return Load(view.buffer, linear(index[3 - len(view.shape) :], view.strides, view.offset))


def _finished(o: LoopBuilder, product: MatrixProduct, total: int, index: Index, dtype: torch.dtype) -> int:
    """`alpha * total + beta * added` in float32, as BLAS computes it before it rounds."""
    if product.alpha != 1:
        total = o.op("mul", total, o.const(product.alpha, torch.float32))
    if product.added is None:
        return total
    view = product.added
    at = tuple([0 if size == 1 else i for size, i in zip(view.shape, index[3 - len(view.shape) :], strict=True)])
    added = o.load(view.buffer, linear(at, view.strides, view.offset), dtype)
    if product.beta != 1:
        added = o.op("mul", added, o.const(product.beta, torch.float32))
    return o.op("add", total, added)


def _sum_of_parts(
    step: Extern, product: MatrixProduct, buffers: dict[str, Buffer], partial: Buffer, splits: int
) -> Loop:
    out = buffers[product.output]
    axes, (b, m, n) = _axes(product.sizes[:3], "i")
    o = LoopBuilder()
    place = (b, m, n)[3 - len(out.shape) :]
    total = o.load(partial.name, linear((0, *place), partial.strides), torch.float32)
    for part in range(1, splits):
        total = o.op("add", total, o.load(partial.name, linear((part, *place), partial.strides), torch.float32))
    total = _finished(o, product, total, (b, m, n), out.dtype)
    o.store(out.name, linear(place, out.strides, out.offset), total, out.dtype)
    return Loop(f"{step.name}_sum", axes, (), tuple(o.body), step.origins)
