"""The algebra of sizes and indices. Other packages import it from here.

>>> from treadle_shapes.expr import Range, simplify, symbol
>>> n, i, j = symbol("n", 1), symbol("i"), symbol("j")
>>> simplify((i * n + j) // n, {j: Range(0, n - 1)})
i
"""

from __future__ import annotations

from treadle_shapes.bounds import KnownRanges, bounds, linear_coefficients
from treadle_shapes.interop_sympy import from_sympy, to_sympy
from treadle_shapes.logic import And, Eq, Ge, Gt, Le, Lt, Ne, Not, Or
from treadle_shapes.nodes import (
    BoolExpr,
    BoolLike,
    Expr,
    Fn,
    IntLike,
    Node,
    Product,
    Sum,
    Symbol,
    add,
    as_powers,
    as_terms,
    children,
    free_symbols,
    make_bool,
    make_fn,
    symbol,
    weight_of,
)
from treadle_shapes.printers import CPP_HELPERS, TRITON_HELPERS, to_cpp, to_python, to_triton
from treadle_shapes.ranges import Range
from treadle_shapes.rewrite import bit_and, bit_or, bit_xor, evaluate, simplify, substitute
from treadle_shapes.rules import (
    ceildiv,
    exactdiv,
    factors_of,
    floordiv,
    maximum,
    minimum,
    mod,
    power,
    shift_left,
    shift_right,
    where,
)

__all__ = [
    "as_powers",
    "as_terms",
    "weight_of",
    "CPP_HELPERS",
    "TRITON_HELPERS",
    "And",
    "BoolExpr",
    "BoolLike",
    "Eq",
    "Expr",
    "Fn",
    "Ge",
    "Gt",
    "IntLike",
    "KnownRanges",
    "Le",
    "Lt",
    "Ne",
    "Node",
    "Not",
    "Or",
    "Product",
    "Range",
    "Sum",
    "Symbol",
    "add",
    "bit_and",
    "bit_or",
    "bit_xor",
    "bounds",
    "children",
    "ceildiv",
    "evaluate",
    "exactdiv",
    "factors_of",
    "floordiv",
    "free_symbols",
    "from_sympy",
    "linear_coefficients",
    "make_bool",
    "make_fn",
    "maximum",
    "minimum",
    "mod",
    "power",
    "shift_left",
    "shift_right",
    "simplify",
    "substitute",
    "symbol",
    "to_cpp",
    "to_python",
    "to_sympy",
    "to_triton",
    "where",
]
