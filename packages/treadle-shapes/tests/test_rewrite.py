"""Substitution, evaluation and simplification, beyond what the rules do."""

from __future__ import annotations

import pytest

from treadle_shapes import (
    DivisionByZeroError,
    Eq,
    MissingValueError,
    Range,
    UsageError,
    evaluate,
    simplify,
    substitute,
    symbol,
)
from treadle_shapes.bounds import KnownRanges
from treadle_shapes.expr import bit_and, bit_or, bit_xor, where

a, b, n = symbol("a", None), symbol("b", None), symbol("n", 1)


def test_all_symbols_are_replaced_at_once():
    assert substitute(a - b, {a: b, b: a}) is b - a
    assert substitute(a // n, {a: n * 3}) == 3 and substitute(Eq(a, b), {a: b}) is True
    assert substitute(5, {a: 1}) == 5


def test_known_values_of_parts_are_used_again():
    half = (a + 1) // 2
    known = {}
    assert [evaluate(e, {a: 9}, known) for e in (half, (half + 1) // 2, half * half)] == [5, 3, 25]
    assert known[half] == 5
    assert evaluate(half + 1, {}, {half: 7}) == 8  # without a value for `a`


def test_only_the_chosen_side_is_evaluated():
    e = where(Eq(n, 1), a, a // (n - 1))
    assert evaluate(e, {a: 7, n: 1}) == 7 and evaluate(e, {a: 7, n: 3}) == 3


def test_what_has_no_value():
    with pytest.raises(MissingValueError, match="no value for symbol b"):
        evaluate(a + b, {a: 1})
    with pytest.raises(DivisionByZeroError):
        evaluate(a // b, {a: 1, b: 0})


def test_quotient_and_remainder_join():
    assert simplify(a % 4 + 4 * (a // 4)) is a
    assert simplify(3 * (a % n) + 3 * n * (a // n)) is 3 * a


def test_known_remainders_make_quotients_exact():
    known = KnownRanges({}, {a % 4: 1})
    assert simplify(4 * (a // 4), known) is a - 1
    assert simplify(a % 4, known) == 1


def test_ranges_of_symbols():
    assert simplify(a % 8, {a: Range(0, 7)}) is a and simplify(a // 8, {a: Range(8, 15)}) == 1
    assert simplify(Eq(a, 9), {a: Range(0, 7)}) is False and simplify(True) is True and simplify(3) == 3


@pytest.mark.parametrize(("build", "python"), [(bit_and, int.__and__), (bit_or, int.__or__), (bit_xor, int.__xor__)])
def test_functions_without_rules(build, python):
    assert build(12, 10) == python(12, 10)
    assert evaluate(build(a, 10), {a: 12}) == python(12, 10) and build(a, b) is build(a, b)
    with pytest.raises(UsageError, match="expected ints or Exprs"):
        build(a, 0.5)
