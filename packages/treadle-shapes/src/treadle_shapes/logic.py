"""Conditions in normal form: comparisons of a polynomial with zero, and / or / not of conditions.

    le0(p)   p <= 0      eq0(p)   p == 0      ne0(p)   p != 0

Integers need no strict comparisons (a < b is a + 1 <= b), so equal conditions are one object. A condition that the
symbols' own ranges decide is a Python bool.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import gcd

from treadle_shapes.bounds import OWN, KnownRanges
from treadle_shapes.errors import UsageError
from treadle_shapes.nodes import (
    _CACHE_SIZE,
    CONSTRUCT,
    BoolExpr,
    BoolLike,
    Expr,
    Fn,
    IntLike,
    as_terms,
    make_bool,
    make_sum,
)

#: comparison -> its negation
_OPPOSITE = {"eq0": "ne0", "ne0": "eq0"}


def _difference(a: IntLike, b: IntLike, what: str) -> IntLike:
    for value in (a, b):
        if not isinstance(value, (int, Expr)):
            raise UsageError(f"{what}: expected an int or Expr, got {type(value).__name__} {value!r}")
    return a - b


def check_condition(what: str, condition: object) -> None:
    """Raise UsageError unless it is a condition."""
    if not isinstance(condition, (bool, BoolExpr)):
        raise UsageError(
            f"{what}: expected a condition such as Eq(a, b) or a < b, got {type(condition).__name__} {condition!r}"
        )


def le_zero(p: IntLike, known: KnownRanges = OWN) -> BoolLike:
    """p <= 0;  with g dividing all coefficients:  g*x + c <= 0  ==  x + ceil(c/g) <= 0"""
    if not isinstance(p, Expr):
        return p <= 0
    low, high = known.interval(p)
    if high <= 0:
        return True
    if low > 0:
        return False
    coefficients, const = as_terms(p)
    g = gcd(*coefficients.values())
    if g != 1:
        p = make_sum({m: c // g for m, c in coefficients.items()}, -(-const // g))
    return make_bool("le0", (p,))


def eq_zero(p: IntLike, known: KnownRanges = OWN) -> BoolLike:
    """p == 0;  with g dividing all coefficients:  g*x + c == 0  ==  x + c/g == 0, false when g does not divide c, or when
    x % n == r is known and (r + c/g) % n != 0"""
    if not isinstance(p, Expr):
        return p == 0
    low, high = known.interval(p)
    if low > 0 or high < 0:
        return False
    if low == high == 0:
        return True
    coefficients, const = as_terms(p)
    g = gcd(*coefficients.values())
    if const % g:
        return False
    if next(iter(coefficients.values())) < 0:
        g = -g
    if g != 1:
        p = make_sum({m: c // g for m, c in coefficients.items()}, const // g)
    if known.residues:
        n, r = known.residues.get(p - const // g, (1, 0))  # type: ignore[arg-type]
        if (r + const // g) % n:
            return False
    return make_bool("eq0", (p,))


@lru_cache(_CACHE_SIZE)
def Le(a: IntLike, b: IntLike) -> BoolLike:
    """a <= b"""
    return le_zero(_difference(a, b, "Le"))


@lru_cache(_CACHE_SIZE)
def Lt(a: IntLike, b: IntLike) -> BoolLike:
    """a < b  ==  a - b + 1 <= 0"""
    return le_zero(_difference(a, b, "Lt") + 1)


def Ge(a: IntLike, b: IntLike) -> BoolLike:
    """a >= b"""
    return Le(b, a)


def at_least(e: IntLike, bound: int) -> BoolLike:
    """e >= bound; where e is a quotient by a constant, a bound of its dividend."""
    while isinstance(e, Fn) and e.op == "floordiv" and isinstance(e.args[1], int) and e.args[1] > 0:
        e, bound = e.args[0], bound * e.args[1]
    return Ge(e, bound)


def Gt(a: IntLike, b: IntLike) -> BoolLike:
    """a > b"""
    return Lt(b, a)


@lru_cache(_CACHE_SIZE)
def Eq(a: IntLike, b: IntLike) -> BoolLike:
    """a == b"""
    return eq_zero(_difference(a, b, "Eq"))


@lru_cache(_CACHE_SIZE)
def Ne(a: IntLike, b: IntLike) -> BoolLike:
    """a != b"""
    return Not(Eq(a, b))


def Not(condition: BoolLike) -> BoolLike:
    """not (p <= 0)  ==  1 - p <= 0;  not (a and b)  ==  not a or not b;  not not a  ==  a"""
    if isinstance(condition, bool):
        return not condition
    if not isinstance(condition, BoolExpr):
        raise UsageError(f"Not: expected a BoolExpr or bool, got {condition!r}")
    try:
        return _negated(condition)
    except RecursionError:
        return make_bool("not", (condition,))


# `_combine` negates every part, and the parts are combinations, too.
@lru_cache(_CACHE_SIZE)
def _negated(condition: BoolExpr) -> BoolLike:
    op, args = condition.op, condition.args
    if op == "le0":
        return le_zero(1 - args[0])
    if op in ("eq0", "ne0"):
        return make_bool(_OPPOSITE[op], args)
    if op == "and":
        return Or(*[Not(arg) for arg in args])
    if op == "or":
        return And(*[Not(arg) for arg in args])
    return args[0] if op == "not" else make_bool("not", (condition,))


def _combine(op: str, absorbing: bool, conditions: tuple[BoolLike, ...]) -> BoolLike:
    """a & a == a;  a & True == a;  a & False == False;  a & ~a == False;  nested ones are flattened (| likewise)"""
    flat: dict[BoolExpr, None] = {}
    for condition in conditions:
        if isinstance(condition, bool):
            if condition is absorbing:
                return absorbing
        elif not isinstance(condition, BoolExpr):
            raise UsageError(f"{op}: expected BoolExpr or bool, got {condition!r}")
        elif condition.op == op:
            flat.update(dict.fromkeys(condition.args))
        else:
            flat[condition] = None
    if not flat:
        return not absorbing
    if any(isinstance(c, bool) or Not(c) in flat for c in flat):
        return absorbing
    if len(flat) == 1:
        return next(iter(flat))
    return make_bool(op, tuple(sorted(flat, key=lambda c: c.order)))


def And(*conditions: BoolLike) -> BoolLike:
    """All of the conditions hold; `And()` is True."""
    return _combine("and", False, conditions)


def Or(*conditions: BoolLike) -> BoolLike:
    """Any of the conditions holds; `Or()` is False."""
    return _combine("or", True, conditions)


#: comparisons of one polynomial with zero; their builders also take a `KnownRanges`
COMPARISONS = ("le0", "eq0", "ne0")

#: op -> constructor of a condition node from its arguments
BUILD: dict[str, Callable[..., BoolLike]] = {
    "le0": le_zero,
    "eq0": eq_zero,
    "ne0": lambda p, known=OWN: Not(eq_zero(p, known)),
    "and": And,
    "or": Or,
    "not": Not,
}

CONSTRUCT.update({"eq": Eq, "le": Le, "lt": Lt, "and": And, "or": Or, "not": Not})
