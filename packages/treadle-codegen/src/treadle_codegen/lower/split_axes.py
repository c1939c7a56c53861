"""Split axes that index expressions divide.

A reshape inside a fused expression leaves `i0 // 12` and `i0 % 12` in its indices. Where 12 divides the axis' extent,
the axis becomes two, and the divisions disappear (the extent may be symbolic, if 12 is a factor of it):

    before   loop [i0:96]         load x[i0 // 12 + 8*(i0 % 12)]
    after    loop [i0:8, i1:12]   load x[i0 + 8*i1]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

from treadle_codegen.ir.loops import Axis, Instr, Load, Loop, Store, scans
from treadle_codegen.lower.indexing import axis_symbol
from treadle_shapes.expr import BoolExpr, Expr, Fn, Product, Sum, Symbol, substitute


def split_axes(loop: Loop) -> Loop:
    """The same loop with as few divisions in its indices as splitting axes can give."""
    for _ in range(8):  # each round splits at least one axis; nesting is never that deep in practice
        found = _first_split(loop)
        if found is None:
            return loop
        loop = _split(loop, *found)
    return loop


def expressions(instr: Instr) -> tuple[Any, ...]:
    """The index expressions and conditions in an instruction."""
    attr = instr.attr
    if isinstance(attr, (Load, Store)):
        return (attr.index,)
    if instr.op == "index":
        return (attr,)
    if instr.op == "masked_load":
        return (attr[0].index, attr[1])
    return ()


def map_expressions(instr: Instr, fn: Any) -> Instr:
    """The instruction with `fn` applied to each of its index expressions and conditions."""
    attr = instr.attr
    if isinstance(attr, (Load, Store)):
        return replace(instr, attr=replace(attr, index=fn(attr.index)))
    if instr.op == "index":
        return replace(instr, attr=fn(attr))
    if instr.op == "masked_load":
        return replace(instr, attr=(replace(attr[0], index=fn(attr[0].index)), fn(attr[1]), attr[2]))
    return instr


@lru_cache(1 << 12)
def _divisions(expr: Any) -> tuple[Fn, ...]:
    return tuple(_atoms(expr))


def _atoms(expr: Any) -> Iterator[Fn]:
    """All divisions and remainders inside an expression, inner ones first."""
    if isinstance(expr, Sum):
        parts: Any = expr.coefficients
    elif isinstance(expr, Product):
        parts = expr.powers
    elif isinstance(expr, (Fn, BoolExpr)):
        parts = expr.args
    else:
        return
    for part in parts:
        yield from _atoms(part)
    if isinstance(expr, Fn) and expr.op in ("floordiv", "mod"):
        yield expr


def _first_split(loop: Loop) -> tuple[int, int] | None:
    """(position among axes + reduce_axes, inner extent) of the first axis to split."""
    everything = [e for instr in loop.body for e in expressions(instr) if isinstance(e, (Expr, BoolExpr))]
    if not any(map(_divisions, everything)):
        return None
    axes = {axis.symbol: k for k, axis in enumerate(loop.axes + loop.reduce_axes)}
    if scans(loop):
        del axes[loop.axes[-1].symbol]
    for expr in everything:
        for atom in _divisions(expr):
            found = _inner_extent(atom, axes, loop)
            if found is not None:
                return found
    return None


def _inner_extent(atom: Fn, axes: dict[Symbol, int], loop: Loop) -> tuple[int, int] | None:
    argument, divisor = atom.args
    if not isinstance(divisor, int) or divisor <= 1:
        return None
    if isinstance(argument, Symbol):
        terms: Any = {argument: 1}
    elif isinstance(argument, Sum):
        terms = argument.coefficients
    else:
        return None
    for symbol, coefficient in terms.items():
        # c*i // D splits i by D // c when c divides D: the rest of the sum then stays below the carry or it does not,
        # which the simplifier decides.
        if symbol in axes and coefficient > 0 and divisor % coefficient == 0:
            extent = (loop.axes + loop.reduce_axes)[axes[symbol]].extent
            inner = divisor // coefficient
            if inner > 1 and extent != inner and extent == (extent // inner) * inner:
                return axes[symbol], inner
    return None


def _split(loop: Loop, position: int, inner: int) -> Loop:
    reducing = position >= len(loop.axes)
    group = list(loop.reduce_axes if reducing else loop.axes)
    k = position - len(loop.axes) if reducing else position
    prefix = "r" if reducing else "i"
    extents = [axis.extent for axis in group]
    extents[k : k + 1] = [extents[k] // inner, inner]
    symbols = [axis_symbol(f"{prefix}{n}", e) for n, e in enumerate(extents)]
    replacement: dict[Symbol, Any] = {}
    for n, axis in enumerate(group):
        if n == k:
            replacement[axis.symbol] = symbols[k] * inner + symbols[k + 1]
        else:
            replacement[axis.symbol] = symbols[n if n < k else n + 1]
    new = tuple(Axis(s, e) for s, e in zip(symbols, extents, strict=True))
    body = tuple(
        [
            map_expressions(i, lambda e: e if isinstance(e, (int, bool)) else substitute(e, replacement))
            for i in loop.body
        ]
    )
    return replace(loop, reduce_axes=new, body=body) if reducing else replace(loop, axes=new, body=body)
