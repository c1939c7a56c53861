"""Float expressions evaluate as Python does; roundings are exact where they become integer expressions."""

from __future__ import annotations

import math
import pickle

from hypothesis import given, settings
from hypothesis import strategies as st

from treadle_shapes import evaluate, symbol, to_python
from treadle_shapes.floats import compare, float_fn, is_integer, round_to_int, to_float

s, t = symbol("s", 1), symbol("t", 1)
FACTORS = st.sampled_from([2.0, 0.5, 0.25, 1.5, 0.3, 1 / 3, 7.0, 0.125, 1e-3, -0.5, -2.0])
SIZES = st.integers(1, 2**40)


@settings(max_examples=300, deadline=None)
@given(FACTORS, SIZES, st.sampled_from(["floor", "ceil", "trunc"]))
def test_rounding_a_scaled_size(factor, size, how):
    want = {"floor": math.floor, "ceil": math.ceil, "trunc": int}[how](float(size) * factor)
    e = round_to_int(how, float_fn("fmul", to_float(s), factor))
    assert evaluate(e, {s: size}) == want
    assert eval(to_python(e), {"math": math, "s": size}) == want


@settings(max_examples=300, deadline=None)
@given(SIZES, st.integers(1, 2**30), st.sampled_from(["floor", "ceil", "trunc"]))
def test_rounding_a_quotient(a, b, how):
    want = {"floor": math.floor, "ceil": math.ceil, "trunc": int}[how](a / b)
    assert evaluate(round_to_int(how, float_fn("truediv", s, t)), {s: a, t: b}) == want


@settings(max_examples=100, deadline=None)
@given(FACTORS, st.integers(1, 1000))
def test_is_integer(factor, size):
    condition = is_integer(float_fn("fmul", to_float(s), factor))
    assert evaluate(condition, {s: size}) == (float(size) * factor).is_integer()


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 20), st.sampled_from([0.0, 0.5, 3.0, 3.5, -1.0, -0.5, 7.25, 20.0]))
def test_comparing_a_size_with_a_constant(size, c):
    for op, holds in (("lt", float.__lt__), ("ge", float.__ge__), ("eq", float.__eq__), ("ne", float.__ne__)):
        for a, b in ((to_float(s), c), (c, to_float(s))):
            x, y = (float(size), c) if a is not c else (c, float(size))
            condition = compare(op, a, b)
            assert isinstance(condition, bool) or condition.op in ("le0", "eq0", "ne0")
            assert evaluate(condition, {s: size}) == holds(x, y)


def test_exact_forms_are_integer_expressions():
    half = float_fn("fmul", to_float(s), 0.5)
    assert round_to_int("floor", half) is s // 2
    assert round_to_int("trunc", float_fn("truediv", s, t)) is s // t
    assert round_to_int("ceil", float_fn("truediv", s, t)) is (s + t - 1) // t
    assert round_to_int("floor", to_float(s)) is s


def test_constants_fold_and_comparisons_evaluate():
    assert float_fn("fadd", 1.5, 2) == 3.5
    assert compare("lt", 1.0, 2.0) is True
    x = float_fn("fadd", to_float(s), 0.5)
    assert evaluate(compare("lt", x, 4.0), {s: 3}) is True
    assert evaluate(compare("ge", x, 4.0), {s: 3}) is False
    assert to_python(compare("lt", x, 4.0)) == "(float(s) + 0.5) < 4.0"
    assert pickle.loads(pickle.dumps(x)) is x
    assert float_fn("fmul", to_float(s), 0.0) is not float_fn("fmul", to_float(s), -0.0)
