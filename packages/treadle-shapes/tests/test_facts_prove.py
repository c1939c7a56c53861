"""What follows from facts is true for all values that satisfy them; proofs end."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies_shapes import EXAMPLES, SYMBOLS, conditions, expressions, points, tight_conditions

from treadle_shapes import ContradictionError, Eq, Ge, Le, Lt, Ne, Or, bounds, evaluate, maximum, minimum, prove, symbol
from treadle_shapes.facts import Facts
from treadle_shapes.guards import Guard, minimal

a, b, c, n = symbol("a"), symbol("b"), symbol("c"), symbol("n", 1)


def facts_of(*conditions_):
    facts = Facts()
    for condition in conditions_:
        facts.add(condition)
    return facts


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(conditions, max_size=4), conditions, expressions, points())
def test_everything_derived_is_true(given_, question, e, values):
    facts = Facts()
    for condition in given_:
        # Facts are what holds at this point, so that the point is a witness.
        facts.add(
            condition if evaluate(condition, values) else (~condition if not isinstance(condition, bool) else True)
        )
    assert evaluate(facts.simplify(e), values) == evaluate(e, values)
    answer = prove(question, facts, 100)
    if answer is not None:
        assert answer == evaluate(question, values)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(conditions, min_size=1, max_size=5), points())
def test_dropped_guards_follow_from_the_kept(conditions_, values):
    guards = [Guard(x if evaluate(x, values) else ~x) for x in conditions_ if not isinstance(x, bool)]
    assume(all(not isinstance(g.expr, bool) for g in guards))
    kept, dropped = minimal(guards)
    assert len(kept) + len(dropped) == len({g.expr for g in guards})
    for trial in itertools.product((0, 1, 5), (2, 7), (1, 3), (2, 4)):
        point = {s: v for s, v in zip(SYMBOLS, (*trial, 3, -2), strict=False)}
        point = {s: max(point.get(s, 1), s.lower if s.lower is not None else -9) for s in SYMBOLS}
        if all(evaluate(g.expr, point) for g in kept):
            assert all(evaluate(d.guard.expr, point) for d in dropped)


@settings(max_examples=5 * EXAMPLES, deadline=None)
@given(st.data(), points())
def test_proofs_from_tight_facts_are_true(data, values):
    facts = Facts()
    for condition in data.draw(st.lists(tight_conditions(values), max_size=4)):
        facts.add(condition)
    question = data.draw(tight_conditions(values))
    for asked in (question, ~question if not isinstance(question, bool) else question):
        answer = prove(asked, facts, 60)
        assert answer is None or answer == evaluate(asked, values)
    for s in SYMBOLS:
        assert values[s] in bounds(s, facts.ranges)
        assert evaluate(facts.simplify(s), values) == values[s]


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(SYMBOLS), st.sampled_from([2, 3, 4, 6, 8, 16])), min_size=1, max_size=3),
    expressions,
    st.sampled_from([2, 4, 8]),
    points(),
)
def test_known_remainders_keep_the_value(known, e, k, values):
    facts = facts_of(*[Eq(s % n, values[s] % n) for s, n in known])
    for asked in (e, e % k, e // k * k, (known[0][0] * 3 + e) % k, known[0][0] // known[0][1] * known[0][1] * 2 + e):
        assert evaluate(facts.simplify(asked), values) == evaluate(asked, values)


@pytest.mark.parametrize(
    ("known", "follows"),
    [
        ([Eq((a + 2) % 4, 2)], [Eq(a % 4, 0), Eq(a % 2, 0), Eq((a + 6) % 4, 2)]),
        ([Eq((a + b + 1) % 4, 1)], [Eq((a + b) % 2, 0), Eq((3 * a + 3 * b + 5) % 4, 1)]),
        ([Eq(a % 4, 1), Eq(a % 3, 2)], [Eq(a % 12, 5), Eq(a % 6, 5)]),
        ([Eq(a % 4, 0), Eq(a % 6, 0)], [Eq(a % 12, 0)]),
        ([Eq((b - a) % 6, 5)], [Eq((a - b) % 3, 1)]),
        ([Eq(a % 24, 9)], [Eq(a // 4 % 2, 0), Eq(a // 8 % 3, 1), Ge(a, 9)]),
        ([Eq(n % 8, 0)], [Ge(n, 8), Ne(n, 20), Ne(2 * n, 40)]),
        ([Eq((a + b) % 4, 1)], [Ne(a + b, 7), Ne(3 * a, 18 - 3 * b)]),
        ([Ge(n, 3), Eq(n % 8, 1), Le(n, 20)], [Eq((n - 1) % 8, 0), Ge(n, 9), Le(n, 17)]),
        ([Eq(n % 8, 1), Ge(n, 3)], [Ge(n, 9)]),
    ],
)
def test_what_remainders_imply(known, follows):
    facts = facts_of(*known)
    for condition in follows:
        assert prove(condition, facts) is True, condition


def test_remainders_that_exclude_each_other():
    with pytest.raises(ContradictionError):
        facts_of(Eq(a % 4, 1), Eq(a % 6, 0))
    with pytest.raises(ContradictionError):
        facts_of(Eq((a + 1) % 4, 1), Eq(a % 6, 1))
    with pytest.raises(ContradictionError):
        facts_of(Ge(a, 9), Le(a, 15), Eq(a % 8, 0))
    with pytest.raises(ContradictionError):
        facts_of(Eq((a * 3 + b) % 4, 1), Eq(b, 2), Eq(a, 4))
    with pytest.raises(ContradictionError):
        facts_of(Eq((a * b) % 4, 1), Eq(a, b * 2))


def test_chains_of_inequalities():
    facts = facts_of(Le(a, b), Lt(b, c))
    assert prove(Lt(a, c), facts) is True
    assert prove(Le(c, a), facts) is False
    assert prove(Le(a + 1, c + 5), facts) is True
    assert prove(Lt(c, a + 10), facts) is None


def test_products():
    assert prove(Ge(n * n, n)) is True
    assert prove(Ge(n * a, a)) is True
    assert prove(Lt(n * a, 0)) is False
    assert prove(Ge(n * a - n, 0)) is None


def test_extrema_bound_what_they_choose_from():
    assert prove(Le(a, maximum(b, a))) is True
    assert prove(Le(minimum(a, b), a + c)) is True
    assert prove(Le(a * maximum(1, b), maximum(1, a) * maximum(1, b))) is True
    assert prove(Lt(maximum(a, b), a)) is False
    assert prove(Le(maximum(a, b), a)) is None
    assert prove(Le(a * maximum(b - 2, c - 2), a * (b - 2))) is None


def test_two_inequalities_make_an_equality():
    facts = facts_of(Le(a, b), Le(b, a))
    assert facts.simplify(b - a) == 0


def test_unsolvable_equality_still_proves_its_consequences():
    facts = facts_of(Eq(a * b, c * n))
    assert prove(Le(a * b, c * n), facts) is True
    assert prove(Lt(a * b, c * n), facts) is False


def test_proofs_see_facts_that_come_later_and_facts_that_are_put_into_others():
    d = symbol("d")
    facts = facts_of(a <= b, b <= c)
    assert prove(a <= c, facts) and prove(a <= d, facts) is None
    facts.add(c <= d)
    assert prove(a <= d, facts)
    facts.add(Eq(b, 7))
    assert prove(c >= 7, facts) and prove(a <= 7, facts) and prove(d >= 7, facts)
    indexed = [fact for (m, is_positive), found in facts.not_positive_by_monomial().items() for fact in found]
    assert {fact.position for fact in indexed} == set(range(len(facts.not_positive)))


@pytest.mark.parametrize(
    ("known", "exponent"),
    [
        (Eq(2**n, 32), 5),
        (Eq(2**n // 8, 4), 5),
        (Eq((2**n + 3) // 8, 4), 5),
        (Eq(2 * (3**n // 9), 6), 3),
    ],
)
def test_the_value_of_a_power_tells_its_exponent(known, exponent):
    facts = facts_of(known)
    assert facts.simplify(n) == exponent


def test_bounds_of_a_power_bound_its_exponent():
    facts = facts_of(2**n <= 100, 2**n > 16)
    assert facts.known_ranges.interval(n) == (5, 6)
    facts = facts_of(2 ** (a + b) <= 8)
    assert prove(a + b <= 3, facts)
    with pytest.raises(ContradictionError):
        facts_of(Eq(2**n, 33))
    with pytest.raises(ContradictionError):
        facts_of(2**n <= 1)  # n is at least 1


def test_disjunctions_and_exclusions():
    facts = facts_of(Or(Eq(a, 3), Eq(a, 5)), Ne(b, 0))
    assert prove(Or(Eq(a, 5), Eq(a, 3)), facts) is True
    assert prove(Ge(b, 1), facts) is True


def test_contradictions():
    with pytest.raises(ContradictionError):
        facts_of(Lt(a, 3), Ge(a, 3))
    with pytest.raises(ContradictionError):
        facts_of(Eq(a, b), Lt(a, b))


def test_a_proof_ends_within_its_steps():
    many = [symbol(f"q{k}", None) for k in range(30)]
    facts = facts_of(*[Le(x * 3, y * 2 + 1) for x, y in itertools.pairwise(many)], *[Le(x, y + z) for x, y, z in
                     zip(many, many[1:], many[2:], strict=False)])  # fmt: skip
    start = time.process_time()
    assert prove(Le(many[0] * 7, many[-1] * 5), facts, 200) is None
    # Not a benchmark: without the budget this search takes minutes.
    assert time.process_time() - start < 20


@given(
    st.lists(st.integers(-3, 3), min_size=6, max_size=6),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 6),
    st.integers(0, 6),
)
def test_polynomials_that_fall_from_the_lower_bounds(coefficients, low_a, low_b, more_a, more_b):
    a, b = symbol("a", low_a), symbol("b", low_b)
    monomials = (1, a, b, a * a, a * b, b * b)
    p = sum((c * m for c, m in zip(coefficients, monomials, strict=True)), 0)
    answer = prove(Le(p, 0))
    value = evaluate(p, {a: low_a + more_a, b: low_b + more_b})
    assert answer is None or answer is (value <= 0)


def test_a_square_grows_faster():
    a, b = symbol("a", 2), symbol("b", 2)
    assert prove(Lt(a, a * a)) is True
    assert prove(Lt(a, a * b)) is True
    assert prove(Lt(symbol("c", 1), symbol("c", 1) ** 2)) is None
