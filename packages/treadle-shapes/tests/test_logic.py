"""Normal forms of conditions."""

from __future__ import annotations

import itertools

import pytest

from treadle_shapes import And, Eq, Ge, Gt, Le, Lt, Ne, Not, Or, UsageError, evaluate, symbol
from treadle_shapes.bounds import KnownRanges
from treadle_shapes.logic import eq_zero, le_zero

a, b = symbol("a", None), symbol("b", None)
n = symbol("n", 1)


def test_equal_conditions_are_one_object():
    assert Lt(a, b) is Le(a + 1, b) is Gt(b, a) is Ge(b - 1, a) is Not(Le(b, a))
    assert Eq(a, b) is Eq(b, a) is Eq(2 * a, 2 * b) is Not(Ne(a, b))
    assert Le(2 * a, 5) is Le(a, 2) and Le(-2 * a, 5) is Ge(a, -2)
    assert And(Le(a, 1), Le(b, 1)) is And(Le(b, 1), And(Le(a, 1), Le(b, 1)))


def test_ranges_decide_at_once():
    assert Ge(n, 1) is True and Lt(n, 1) is False and Eq(n, 0) is False and Ne(n, 0) is True
    assert Eq(2 * a, 5) is False
    assert Eq(a - a, 0) is True


def test_combinations_fold():
    p, q = Le(a, 1), Le(b, 1)
    assert And() is True and Or() is False
    assert And(p, True) is p is Or(p, False) and And(p, False) is False and Or(p, True) is True
    assert And(p, Not(p)) is False and Or(p, Not(p)) is True and Not(Not(And(p, q))) is And(p, q)
    assert Not(And(p, q)) is Or(Not(p), Not(q))


def test_residues_refute_equalities():
    known = KnownRanges({}, {a % 4: 1})
    assert eq_zero(a - 6, known) is False and eq_zero(a - 5, known) is Eq(a, 5)
    assert le_zero(a, known) is Le(a, 0)


@pytest.mark.parametrize("build", [Le, Lt, Ge, Gt, Eq, Ne])
def test_comparisons_mean_pythons(build):
    python = {Le: int.__le__, Lt: int.__lt__, Ge: int.__ge__, Gt: int.__gt__, Eq: int.__eq__, Ne: int.__ne__}[build]
    for x, y in itertools.product(range(-3, 4), repeat=2):
        assert evaluate(build(3 * a, 2 * b + 1), {a: x, b: y}) is python(3 * x, 2 * y + 1)


@pytest.mark.parametrize("build", [lambda: Le(a, 0.5), lambda: And(a), lambda: Or(1), lambda: Not(a)])
def test_other_operands_are_refused(build):
    with pytest.raises(UsageError):
        build()
