"""Rewrites and bounds are sound: random expressions, random values, both sides evaluated."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from strategies_shapes import EXAMPLES, SYMBOLS, conditions, expressions, points, ranges_and_points

from treadle_shapes.expr import bounds, evaluate, simplify, substitute, to_python
from treadle_shapes.nodes import Fn, Product, Sum, Symbol

MANY = settings(max_examples=EXAMPLES, deadline=None)


def naive(e, values):
    """A second evaluator, straight from the meaning of the nodes' printed form."""
    return eval(to_python(e), {"min": min, "max": max, **{s.name: values[s] for s in SYMBOLS}})


@MANY
@given(expressions, points())
def test_printed_python_means_the_expression(e, values):
    assert naive(e, values) == evaluate(e, values)


@MANY
@given(conditions, points())
def test_printed_condition_means_the_condition(c, values):
    assert bool(naive(c, values)) == evaluate(c, values)


@MANY
@given(expressions, ranges_and_points())
def test_simplify_keeps_the_value(e, known_values):
    known, values = known_values
    assert evaluate(simplify(e, known), values) == evaluate(e, values)


@MANY
@given(conditions, ranges_and_points())
def test_simplify_keeps_the_truth(c, known_values):
    known, values = known_values
    assert evaluate(simplify(c, known), values) == evaluate(c, values)


@MANY
@given(expressions, ranges_and_points())
def test_values_stay_within_bounds(e, known_values):
    known, values = known_values
    assert evaluate(e, values) in bounds(e, known)


@MANY
@given(expressions, points(), st.dictionaries(st.sampled_from(SYMBOLS[:3]), expressions, max_size=2))
def test_substitution_commutes_with_evaluation(e, values, replacement):
    inner = {**values, **{s: evaluate(r, values) for s, r in replacement.items()}}
    if all(inner[s] in s.range for s in replacement):
        assert evaluate(substitute(e, replacement), values) == evaluate(e, inner)


@MANY
@given(expressions, expressions, points())
def test_arithmetic_is_arithmetic(a, b, values):
    x, y = evaluate(a, values), evaluate(b, values)
    assert evaluate(a + b, values) == x + y
    assert evaluate(a - b, values) == x - y
    assert evaluate(a * b, values) == x * y
    if y:
        assert evaluate(a // b if not (isinstance(b, int) and b == 0) else 0, values) == x // y
        assert evaluate(a % b, values) == x % y


@MANY
@given(expressions)
def test_the_normal_form_holds(e):
    """No Sum inside a Sum, no zero coefficient, no constant as an atom, sorted."""
    stack = [e]
    while stack:
        node = stack.pop()
        if isinstance(node, Sum):
            assert node.coefficients and all(type(c) is int and c for c in node.coefficients.values())
            assert not any(isinstance(m, Sum) for m in node.coefficients)
            assert [m.order for m in node.coefficients] == sorted(m.order for m in node.coefficients)
            stack += node.coefficients
        elif isinstance(node, Product):
            assert all(p >= 1 and isinstance(a, (Symbol, Fn)) for a, p in node.powers.items())
            stack += node.powers
        elif isinstance(node, Fn):
            stack += node.args
