"""Calls of graph functions give what `evaluate` gives, on numbers."""

from __future__ import annotations

import operator

import pytest
from hypothesis import given, settings
from strategies_shapes import EXAMPLES, conditions, expressions, points

pytest.importorskip("torch")

from treadle_shapes.errors import ShapesError
from treadle_shapes.expr import Eq, Ge, Le, Lt, evaluate, symbol
from treadle_shapes.floats import float_fn, round_to_int, to_float
from treadle_shapes.torch.graph_calls import build_calls


def value(e, values):
    """`e` computed through `build_calls`."""
    return build_calls(e, values.__getitem__, lambda function, args: function(*args))


@settings(max_examples=EXAMPLES, deadline=None)
@given(expressions, points())
def test_integers(e, values):
    try:
        expected = evaluate(e, values)
    except ShapesError:
        return
    try:
        assert value(e, values) == expected
    except ZeroDivisionError:
        assert "where" in repr(e) or " if " in repr(e)  # `sym_ite` computes both sides, `evaluate` the one taken


@settings(max_examples=EXAMPLES, deadline=None)
@given(conditions, points())
def test_conditions(c, values):
    try:
        expected = evaluate(c, values)
    except ShapesError:
        return
    try:
        assert value(c, values) is expected
    except ZeroDivisionError:
        assert " if " in repr(c)


def test_floats():
    n = symbol("n", 1)
    half = float_fn("fmul", to_float(n), 0.3)
    assert value(half, {n: 7}) == 7.0 * 0.3
    assert value(float_fn("math_sqrt", half), {n: 7}) == (7.0 * 0.3) ** 0.5
    assert value(round_to_int("ceil", half), {n: 7}) == 3
    assert value(float_fn("fround", half, 1), {n: 7}) == round(7.0 * 0.3, 1)


def test_equal_parts_are_built_once():
    n, calls = symbol("n", 1), []

    def call(function, args):
        calls.append((function, args))
        return f"t{len(calls)}"

    done = {}
    build_calls(n * n + 1, str, call, done)
    build_calls(Le(n * n, 9), str, call, done)
    assert calls == [
        (operator.mul, ("n", "n")),
        (operator.add, ("t1", 1)),
        (operator.le, ("t1", 9)),
    ]


def test_comparisons_read_as_people_write_them():
    n, m = symbol("n", 0), symbol("m", 0)
    text = lambda c: build_calls(c, str, lambda function, args: f"{function.__name__}({', '.join(map(str, args))})")
    assert text(Ge(n, 2)) == "ge(n, 2)"
    assert text(Le(n, 2)) == "le(n, 2)"
    assert text(Lt(n, m)) == "le(n, add(m, -1))"
    assert text(Eq(n, m)) == "eq(m, n)"
