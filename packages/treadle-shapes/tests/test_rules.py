"""Every rewrite rule fires where its equation says, and both sides agree on random integers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies_shapes import EXAMPLES, SYMBOLS, divisors, expressions, ranges_and_points, view_indices

from treadle_shapes import rules
from treadle_shapes.bounds import OWN, KnownRanges
from treadle_shapes.errors import DivisionByZeroError, UsageError
from treadle_shapes.expr import Range, as_terms, bounds, evaluate, maximum, minimum, simplify, symbol
from treadle_shapes.nodes import Expr

i, j = symbol("i"), symbol("j")
n, m = symbol("n", 1), symbol("m", 2)
z = symbol("z", None)
J8 = KnownRanges({j: Range(0, 7)})
JN = KnownRanges({j: Range(0, n - 1)})

#: rule -> operands on which it must fire, and what it must give
FIRES = {
    "quotient_in_range": (j, 8, J8, 0),
    "remainder_in_range": (j, 8, J8, j),
    "quotient_of_content": (4 * i + 6, 8, OWN, (2 * i + 3) // 4),
    "remainder_of_content": (4 * i + 6, 8, OWN, 4 * ((i + 1) % 2) + 2),
    "quotient_of_common_factor": (i * n + j * n, n * m, OWN, (i + j) // m),
    "remainder_of_common_factor": (i * n + j * n, n * m, OWN, (i + j) % m * n),
    "quotient_of_quotient": (i // 3, 5, OWN, i // 15),
    "quotient_of_remainder": (i % 12, 4, OWN, i // 4 % 3),
    "remainder_of_remainder": (i % 12 + j, 4, OWN, (i + j) % 4),
    "remainder_of_residue": (3 * i + j, 4, KnownRanges({}, {i % 8: 5}), (j + 3) % 4),
    "remainder_of_quotient": (i // 4, 2, KnownRanges({}, {i % 8: 5}), 1),
    "quotient_of_part": (n * i + j, n * 4, JN, i // 4),
    "remainder_of_part": (n * i + j, n * 4, JN, n * (i % 4) + j),
}


def test_a_quotient_on_the_edge_of_the_range():
    closed = KnownRanges({i: Range(0, n)})
    assert simplify(-i // n, closed.ranges) is -i // n  # 0 and -1 both occur
    assert simplify((-i - 1) // (n + 1), closed.ranges) == -1
    assert simplify(i // n, closed.ranges) is i // n
    assert simplify(i // (n + 1), closed.ranges) == 0


def test_a_factor_of_either_sign_takes_both_ends():
    known = {j: Range(0, n - 1), z: Range(-2, 2)}
    assert bounds(z * j - 1, known) == Range(None, None)
    assert bounds(z * j - n * n * 2, {**known, n: Range(1, 9)}).lower == -2 * 8 - 2 * 81
    assert bounds(3 - 2 * j + 2 * n, known).lower == 5


def test_every_rule_is_listed():
    assert {rule.__name__ for rule in rules.FLOORDIV_RULES + rules.MOD_RULES} == set(FIRES)


@pytest.mark.parametrize("name", FIRES)
def test_rule_fires(name):
    a, b, known, want = FIRES[name]
    got = getattr(rules, name)(a, b, known)
    assert got == want or str(got) == str(want)


@pytest.mark.parametrize("rule", rules.FLOORDIV_RULES, ids=lambda r: r.__name__)
@settings(max_examples=EXAMPLES, deadline=None)
@given(a=expressions, b=divisors, known_values=ranges_and_points())
def test_quotient_rules_keep_the_value(rule, a, b, known_values):
    known, values = known_values
    if evaluate(b, values) and isinstance(a, Expr) and not (isinstance(b, int) and b <= 0):
        result = rule(a, b, KnownRanges(known))
        if result is not None:
            assert evaluate(result, values) == evaluate(a, values) // evaluate(b, values)


@pytest.mark.parametrize("rule", rules.MOD_RULES, ids=lambda r: r.__name__)
@settings(max_examples=EXAMPLES, deadline=None)
@given(a=expressions, b=divisors, known_values=ranges_and_points())
def test_remainder_rules_keep_the_value(rule, a, b, known_values):
    known, values = known_values
    if evaluate(b, values) and isinstance(a, Expr) and not (isinstance(b, int) and b <= 0):
        result = rule(a, b, KnownRanges(known))
        if result is not None:
            assert evaluate(result, values) == evaluate(a, values) % evaluate(b, values)


@settings(max_examples=4 * EXAMPLES, deadline=None)
@given(view_indices())
def test_flattened_indices_keep_their_value(case):
    index, divisor, known, values = case
    context, number, by = KnownRanges(known), evaluate(index, values), evaluate(divisor, values)
    for operation, rule_set, want in (
        (rules.floordiv, rules.FLOORDIV_RULES, number // by),
        (rules.mod, rules.MOD_RULES, number % by),
    ):
        assert evaluate(operation(index, divisor, context), values) == want
        for rule in rule_set:
            result = rule(index, divisor, context)
            assert result is None or evaluate(result, values) == want, rule.__name__
    joined = divisor * (index // divisor) + index % divisor
    assert evaluate(simplify(joined, known), values) == number
    assert number in bounds(index, known)


@settings(max_examples=EXAMPLES, deadline=None)
@given(a=expressions, b=divisors, known_values=ranges_and_points())
def test_split_multiple_is_an_identity(a, b, known_values):
    _known, values = known_values
    quotient, rest = rules.split_multiple(a, b)
    assert evaluate(quotient, values) * evaluate(b, values) + evaluate(rest, values) == evaluate(a, values)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(expressions, min_size=1, max_size=4), ranges_and_points())
def test_extrema_keep_the_value(args, known_values):
    known, values = known_values
    context = KnownRanges(known)
    numbers = [evaluate(arg, values) for arg in args]
    assert evaluate(rules._extremum("min", tuple(args), context), values) == min(numbers)
    assert evaluate(rules._extremum("max", tuple(args), context), values) == max(numbers)
    assert evaluate(minimum(*args), values) == min(numbers) and evaluate(maximum(*args), values) == max(numbers)


@settings(max_examples=EXAMPLES, deadline=None)
@given(expressions, divisors, ranges_and_points())
def test_ceiling_division(a, b, known_values):
    _known, values = known_values
    if evaluate(b, values):
        assert evaluate(rules.ceildiv(a, b), values) == -(-evaluate(a, values) // evaluate(b, values))


def test_factors():
    assert rules.factors_of(8 * n) == {n}
    assert rules.factors_of(n * n * m) == {n, m}
    assert rules.factors_of(2 * n * i + 4 * m * i) == {i, n + 2 * m}
    assert rules.factors_of(8 * z + 8) == {z + 1}
    assert rules.factors_of(6) == frozenset()


@settings(max_examples=EXAMPLES, deadline=None)
@given(expressions, ranges_and_points())
def test_an_expression_is_zero_where_one_of_its_factors_is(e, known_values):
    _known, values = known_values
    if isinstance(e, Expr):
        assert (evaluate(e, values) == 0) == any(evaluate(factor, values) == 0 for factor in rules.factors_of(e))


def test_bad_operands():
    with pytest.raises(DivisionByZeroError, match="the divisor is zero"):
        i % 0
    with pytest.raises(UsageError, match="negative count"):
        i**-1
    with pytest.raises(UsageError, match="negative count"):
        i << -1
    with pytest.raises(UsageError, match="at least one"):
        minimum()
    with pytest.raises(TypeError):
        i + 1.5


def test_exact_division():
    assert rules.exactdiv(6 * n * i, 2 * n) is 3 * i
    assert rules.exactdiv(12, 4) == 3
    assert rules.exactdiv(i, 4) is i // 4
    with pytest.raises(UsageError, match="4 does not divide .*: the remainder is 2"):
        rules.exactdiv(4 * i + 2, 4)
    with pytest.raises(DivisionByZeroError):
        rules.exactdiv(i, 0)


def test_powers_and_shifts():
    assert i**2 is i * i and i**0 == 1
    assert i << 3 is 8 * i and i >> 2 is i // 4
    assert evaluate(2**i, {i: 5}) == 32
    assert len(as_terms((i + j) ** 3)[0]) == 4
    assert set(SYMBOLS) >= {i, j, n, m, z}
