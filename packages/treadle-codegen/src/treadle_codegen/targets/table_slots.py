"""What stands where in the table that the entry points of a unit read, as the host and the kernels agree on it."""

from __future__ import annotations

from typing import Any

from treadle_codegen.ir.loops import FloatExpr
from treadle_shapes.expr import Symbol

# Bits of what kernels report through the table.
OUT_OF_RANGE, DOUBTFUL = 1, 2


def slot_key(number: Any) -> str:
    """The key of a number in the table's slots."""
    if isinstance(number, Symbol):
        return number.name
    return f"{'double' if isinstance(number, FloatExpr) else 'int'} {number}"
