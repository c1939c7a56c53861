"""Conversion of expressions to and from SymPy. The first call imports SymPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from treadle_shapes.errors import ExpressionTooLargeError, UsageError
from treadle_shapes.logic import And, Eq, Ge, Gt, Le, Lt, Ne, Not, Or
from treadle_shapes.nodes import BoolExpr, Expr, Fn, Product, Sum, Symbol, symbol
from treadle_shapes.rules import floordiv, maximum, minimum, mod, power, where

_TOO_DEEP = "{}: the expression is nested too deeply; convert parts of it separately"


def to_sympy(e: Any, symbols: dict[Symbol, Any] | None = None) -> Any:
    """Return the SymPy form: floor(a/b), Mod, Min, Max, Piecewise. Symbols become integer symbols of the same name.

    `symbols` overrides the SymPy symbol used for some of ours. Raises UsageError for bit operations, which SymPy lacks.
    """
    import sympy

    chosen = {} if symbols is None else symbols

    def number(s: Symbol) -> Any:
        assumptions: dict[str, bool] = {"integer": True}
        if s.lower is not None and s.lower >= 0:
            assumptions["positive" if s.lower > 0 else "nonnegative"] = True
        return sympy.Symbol(s.name, **assumptions)

    functions = {
        "floordiv": lambda a, b: sympy.floor(a / b),
        "mod": lambda a, b: a - b * sympy.floor(a / b) if not getattr(b, "is_positive", False) else sympy.Mod(a, b),
        "min": sympy.Min,
        "max": sympy.Max,
        "product": lambda a, b: a * b,
        "pow": lambda a, n: a**n,
        "shl": lambda a, n: a * 2**n,
        "shr": lambda a, n: sympy.floor(a / 2**n),
        "where": lambda c, a, b: sympy.Piecewise((a, c), (b, True)),
        "le0": lambda p: sympy.Le(p, 0),
        "eq0": lambda p: sympy.Eq(p, 0),
        "ne0": lambda p: sympy.Ne(p, 0),
        "and": sympy.And,
        "or": sympy.Or,
        "not": sympy.Not,
    }

    def visit(node: Any) -> Any:
        if isinstance(node, bool):
            return sympy.true if node else sympy.false
        if isinstance(node, int):
            return sympy.Integer(node)
        if isinstance(node, Symbol):
            return chosen.get(node) or number(node)
        if isinstance(node, Sum):
            return sympy.Add(node.const, *[c * visit(m) for m, c in node.coefficients.items()])
        if isinstance(node, Product):
            return sympy.Mul(*[visit(a) ** p for a, p in node.powers.items()])
        if isinstance(node, (Fn, BoolExpr)) and node.op in functions:
            return functions[node.op](*[visit(arg) for arg in node.args])
        raise UsageError(f"to_sympy: {node} has no SymPy form")

    try:
        return visit(e)
    except RecursionError:
        raise ExpressionTooLargeError(_TOO_DEEP.format("to_sympy")) from None


def from_sympy(s: Any, symbols: dict[Any, Expr] | None = None) -> Any:
    """Return the expression or condition of a SymPy form. `symbols` maps SymPy symbols (and whole forms) to ours.

    Symbols not in the map become symbols of the same name, non-negative or positive where SymPy says so. Rational
    factors are understood inside floor only. Raises UsageError for anything else.
    """
    import sympy

    try:
        return _Reader(symbols or {}).read(sympy.Integer(s) if isinstance(s, int) and not isinstance(s, bool) else s)
    except RecursionError:
        raise ExpressionTooLargeError(_TOO_DEEP.format("from_sympy")) from None


class _Reader:
    """Makes expressions and conditions of SymPy forms. chosen: forms that stand for given expressions."""

    def __init__(self, chosen: dict[Any, Expr]) -> None:
        import sympy

        self._chosen = chosen
        self._build: dict[Any, Callable[..., Any]] = {
            sympy.Symbol: self._symbol,
            sympy.Add: lambda node: sum(self._all(node)),
            sympy.Mul: lambda node: math.prod(self._all(node)),
            sympy.Pow: lambda node: power(*self._all(node)),
            sympy.floor: lambda node: self._floor(node.args[0]),
            sympy.ceiling: lambda node: -self._floor(-node.args[0]),
            sympy.Piecewise: self._piecewise,
        }
        relations = {sympy.Le: Le, sympy.Lt: Lt, sympy.Ge: Ge, sympy.Gt: Gt, sympy.Eq: Eq, sympy.Ne: Ne}
        functions = {
            sympy.Min: minimum,
            sympy.Max: maximum,
            sympy.And: And,
            sympy.Or: Or,
            sympy.Not: Not,
            sympy.Mod: mod,
        }
        for form, function in {**relations, **functions}.items():
            self._build[form] = lambda node, function=function: function(*self._all(node))

    def read(self, node: Any) -> Any:
        import sympy

        if node is sympy.true or node is sympy.false:
            return bool(node)
        if isinstance(node, sympy.Integer):
            return int(node)
        if not isinstance(node, sympy.Basic):
            raise UsageError(f"from_sympy: expected a SymPy form, got {type(node).__name__} {node!r}")
        if node in self._chosen:
            return self._chosen[node]
        build = next((self._build[cls] for cls in type(node).__mro__ if cls in self._build), None)
        if build is None:
            raise UsageError(f"from_sympy: {node} ({type(node).__name__}) has no integer form here")
        return build(node)

    def _all(self, node: Any) -> list[Any]:
        return [self.read(arg) for arg in node.args]

    def _symbol(self, node: Any) -> Any:
        return symbol(node.name, 1 if node.is_positive else 0 if node.is_nonnegative else None)

    def _floor(self, inner: Any) -> Any:
        import sympy

        numerator, denominator = sympy.fraction(sympy.together(inner))
        return floordiv(self.read(numerator), self.read(denominator))

    def _piecewise(self, node: Any) -> Any:
        import sympy

        *cases, last = node.args
        if last[1] is not sympy.true:
            raise UsageError(
                f"from_sympy: {node} has no value where none of its conditions holds; end it with (value, True)"
            )
        result = self.read(last[0])
        for value, condition in reversed(cases):
            result = where(self.read(condition), self.read(value), result)
        return result
