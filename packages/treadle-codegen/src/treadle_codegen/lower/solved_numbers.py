"""Symbols that sizes are written with, computed from the numbers of a graph that facts have written with them.

inputs     k (s1);  after the trace s1 == s0 - 1 is known, and sizes are written with s0, which is no input
program    define s0 = s1 + 1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle_codegen.ir.loops import Define, symbols_of
from treadle_codegen.lower.context import Lowering
from treadle_shapes.expr import Expr, linear_coefficients


def define_solved(lowering: Lowering, numbers: Sequence[tuple[Any, Expr]]) -> None:
    """Define the symbols that follow from equations number == expression, the number a symbol of an input.

    They count as known only at run time: memory is not planned by them. A symbol that occurs in none, or only beside others that
    are unknown, too, stays undefined.
    """
    left = list(numbers)
    while True:
        for equation in left:
            number, written = equation
            unknown = symbols_of(written) - lowering.symbols
            split = linear_coefficients(written, unknown) if len(unknown) == 1 else None
            if split is None:
                continue
            ((symbol, factor),) = split[0].items() if split[0] else ((None, None),)
            if isinstance(factor, int):
                lowering.steps.append(Define(lowering.fresh(f"define_{symbol}"), symbol, (number - split[1]) // factor))  # type: ignore[arg-type]
                lowering.symbols.add(symbol)
                left.remove(equation)
                break
        else:
            return


__all__ = ["define_solved"]
