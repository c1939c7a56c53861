"""Expressions as Python functions: the values of `evaluate`, or None."""

from __future__ import annotations

import pytest

from treadle_shapes import ShapeEnv, evaluate, maximum, python_function, where
from treadle_shapes.floats import float_fn


@pytest.fixture
def env():
    return ShapeEnv()


def test_the_function_gives_what_evaluate_gives(env):
    a, b = env.create_symbol(6, "a"), env.create_symbol(3, "b", size=False)
    for e in (a + 1, a * b - 2 * b, maximum(a, b * 4), where(a <= 4, a * a, b)):
        function = python_function(e, [a, b])
        assert function is not None
        for values in ((6, 3), (2, -5), (4, 100)):
            assert function(*values) == evaluate(e, {a: values[0], b: values[1]})


def test_divisions_by_a_constant(env):
    a, b = env.create_symbol(6, "a"), env.create_symbol(3, "b", size=False)
    for e in ((a + 1) % 5, (b - 7) // 2, a % -3 + b // -4):
        function = python_function(e, [a, b])
        assert function is not None
        for values in ((6, 3), (2, -5), (4, 100)):
            assert function(*values) == evaluate(e, {a: values[0], b: values[1]})


def test_floats(env):
    a, x = env.create_symbol(6, "a"), env.create_float(0.5, "x")
    e = float_fn("fadd", float_fn("fmul", x, 3.0), float_fn("float", a))
    function = python_function(e, [a, x])
    assert function is not None
    assert function(2, 0.1) == evaluate(e, {a: 2, x: 0.1}) == 0.1 * 3 + 2


def test_what_python_computes_otherwise_is_not_compiled(env):
    a, b = env.create_symbol(6, "a"), env.create_symbol(3, "b", size=False)
    assert python_function(a // b, [a, b]) is None
    assert python_function(a % b, [a, b]) is None
    assert python_function(a**b, [a, b]) is None
