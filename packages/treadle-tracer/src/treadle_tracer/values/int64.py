"""Symbolic integers that may not fit in 64 bits. Python's integers never overflow; those of compiled code do.

A lifted number is below 2**31 in magnitude (`dynamic.is_small_integer`). Sizes of dimensions multiply to the size of an address space at
most, each taken once. What stays within 64 bits by these bounds needs no guard; anything else gets one.
"""

from __future__ import annotations

from typing import Any

from treadle_shapes import And, Ge, Le, ShapeEnv
from treadle_shapes.expr import Expr, Fn, Symbol, as_powers, as_terms

LARGEST = 2**63 - 1
_NUMBER = 2**31
_SIZES = 2**47
_UNKNOWN = 2**64


def fits(env: ShapeEnv, expr: Any) -> bool:
    """Whether compiled code computes an expression as Python does; a guard makes sure where that depends on the numbers."""
    if not isinstance(expr, Expr) or env.is_unbacked(expr) or _magnitude(env, expr) <= LARGEST:
        return True
    inner = [part for part in _parts(expr) if _magnitude(env, part) > LARGEST]
    return all(env.decide(And(Le(part, LARGEST), Ge(part, -LARGEST))) for part in inner)


def _parts(expr: Any) -> list[Any]:
    """The expression and what stands inside of its functions. Sums and products may overflow on the way and be right in the end."""
    found: dict[Any, None] = {expr: None}
    for monomial in as_terms(expr)[0]:
        for atom in as_powers(monomial):
            if isinstance(atom, Fn):
                for argument in atom.args:
                    if isinstance(argument, Expr):
                        found.update(dict.fromkeys(_parts(argument)))
                found[atom] = None
    return list(found)


def _magnitude(env: ShapeEnv, expr: Any) -> int:
    """A number that the expression does not exceed in magnitude."""
    if isinstance(expr, int):
        return abs(expr)
    if not isinstance(expr, Expr):
        return _UNKNOWN
    coefficients, const = as_terms(expr)
    return abs(const) + sum(abs(c) * _of_monomial(env, monomial) for monomial, c in coefficients.items())


def _of_monomial(env: ShapeEnv, monomial: Any) -> int:
    result, has_size = 1, False
    for atom, power in as_powers(monomial).items():
        if isinstance(atom, Symbol) and env.symbols[atom].size:
            if has_size and power == 1:
                continue  # sizes of different dimensions together
            has_size = True
            result *= _SIZES**power
        else:
            result *= (_NUMBER if isinstance(atom, Symbol) else _of_function(env, atom)) ** power
        if result > LARGEST:
            return _UNKNOWN
    return result


def _of_function(env: ShapeEnv, atom: Any) -> int:
    arguments = [_magnitude(env, argument) for argument in atom.args]
    if atom.op in ("min", "max"):
        return max(arguments)
    return arguments[0] if atom.op == "floordiv" else arguments[1] if atom.op == "mod" else _UNKNOWN
