"""Turns an expression into a tree of calls of Python and torch functions, as graphs hold them. Needs torch.

    n * m + 1 <= k    ->    operator.le(operator.mul(n, m), operator.add(k, -1))

The functions work on plain numbers, when the graph runs, and on `torch.SymInt`, `SymFloat` and `SymBool`, when the graph is
traced again. On numbers they return exactly what `evaluate` returns.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from treadle_shapes.errors import UsageError
from treadle_shapes.floats import FLOAT_OPS, FloatExpr
from treadle_shapes.nodes import Node, Product, Sum, Symbol, as_terms, make_sum

Leaf = Callable[[Any], Any]
Call = Callable[[Callable[..., Any], tuple[Any, ...]], Any]
CallFloat = Callable[[Callable[..., Any], tuple[Any, ...], FloatExpr], Any]


def _math_function(name: str) -> Callable[..., Any]:
    return getattr(torch, f"_sym_{name}", None) or getattr(math, name)


#: operation of an expression, as named in `rewrite.EVALUATE` -> its function
NUMBER_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "product": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "min": torch.sym_min,
    "max": torch.sym_max,
    "pow": operator.pow,
    "shl": operator.lshift,
    "shr": operator.rshift,
    "bitand": operator.and_,
    "bitor": operator.or_,
    "bitxor": operator.xor,
    "where": torch.sym_ite,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
    "float": torch.sym_float,
    "truediv": operator.truediv,
    "fadd": operator.add,
    "fsub": operator.sub,
    "fmul": operator.mul,
    "fdiv": operator.truediv,
    "fpow": operator.pow,
    "fmod": operator.mod,
    "ffloordiv": operator.floordiv,
    "fcopysign": math.copysign,
    "fneg": operator.neg,
    "fabs": operator.abs,
    "fmin": min,
    "fmax": max,
    "fwhere": torch.sym_ite,
    "fround": round,
    **{name: _math_function(name.removeprefix("math_")) for name in FLOAT_OPS if name.startswith("math_")},
    "and": operator.and_,
    "or": operator.or_,
    "not": torch.sym_not,
    "float_lt": operator.lt,
    "float_ge": operator.ge,
    "float_eq": operator.eq,
    "float_ne": operator.ne,
}
_OF_ANY_NUMBER = ("and", "or", "min", "max")
#: comparisons with zero
_WITH_ZERO = {"le0": operator.le, "eq0": operator.eq, "ne0": operator.ne}
_MIRRORED = {"le0": operator.ge, "eq0": operator.eq, "ne0": operator.ne}


def build_calls(
    e: Any, leaf: Leaf, call: Call, done: dict[Any, Any] | None = None, call_float: CallFloat | None = None
) -> Any:
    """Build the calls of `e` from the leaves up, and return the result of the outermost `call(function, arguments)`.

    Constants stay as they are. leaf: maps a symbol to its value. done: expression -> value, read and extended. call_float: like `call`,
    with the expression as third argument, for operations with a float result. (`math.log` and others fix the value of a
    `torch.SymFloat` when they are called on it.)
    Raises UsageError for an operation without a graph function.
    """
    return _Builder(leaf, call, {} if done is None else done, call_float).build(e)


def call_on_symbolic(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call `function(*args)` on symbolic numbers. `torch.sym_ite` gets two arguments of one kind, because it takes no others."""
    if function is torch.sym_ite and isinstance(args[0], torch.SymBool):
        node = args[0].node
        then, other = (getattr(arg, "node", None) or node._wrap(arg) for arg in args[1:])  # type: ignore[attr-defined]
        return node.adapter.wrap(node.sym_ite(then, other).value)  # type: ignore[attr-defined]
    return function(*args)


class _Builder:
    def __init__(self, leaf: Leaf, call: Call, done: dict[Any, Any], call_float: CallFloat | None) -> None:
        self.leaf = leaf
        self.call_float = call_float
        self.call = call
        self.done = done

    def build(self, e: Any) -> Any:
        if not isinstance(e, Node):
            return e
        found = self.done.get(e)
        if found is None:
            found = self.done[e] = self._new(e)
        return found

    def _new(self, e: Any) -> Any:
        if isinstance(e, Sum):
            return self._sum(e)
        if isinstance(e, Product):
            return self._product(e)
        if isinstance(e, Symbol) or not e.args:
            return self.leaf(e)
        if e.op in _WITH_ZERO:
            return self._comparison(e)
        function = NUMBER_FUNCTIONS.get(e.op)
        if function is None:
            raise UsageError(f"no function of a graph computes {e}")
        args = [self.build(arg) for arg in e.args]
        while e.op in _OF_ANY_NUMBER and len(args) > 2:
            args[:2] = [self.call(function, (args[0], args[1]))]
        if self.call_float is not None and isinstance(e, FloatExpr):
            return self.call_float(function, tuple(args), e)
        return self.call(function, tuple(args))

    def _comparison(self, e: Any) -> Any:
        """Build p <= 0 with terms moved so that no factor is negative:  n - m + 1 <= 0  ==  n + 1 <= m;  2 - n <= 0  ==  n >= 2"""
        terms, const = as_terms(e.args[0])
        left = make_sum({m: c for m, c in terms.items() if c > 0}, 0)
        right = make_sum({m: -c for m, c in terms.items() if c < 0}, 0)
        if isinstance(left, int):
            return self.call(_MIRRORED[e.op], (self.build(right), const))
        return self.call(_WITH_ZERO[e.op], (self.build(left), self.build(right - const)))

    def _sum(self, e: Sum) -> Any:
        total: Any = None
        for monomial, coefficient in e.coefficients.items():
            term = self.build(monomial)
            if coefficient != 1:
                term = self.call(operator.mul, (term, coefficient))
            total = term if total is None else self.call(operator.add, (total, term))
        return self.call(operator.add, (total, e.const)) if e.const else total

    def _product(self, e: Product) -> Any:
        product: Any = None
        for atom, power in e.powers.items():
            for _ in range(power):
                factor = self.build(atom)
                product = factor if product is None else self.call(operator.mul, (product, factor))
        return product
