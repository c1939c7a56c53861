"""Float expressions evaluate as Python does; roundings are exact where they become integer expressions."""

from __future__ import annotations

import math
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle_shapes import (
    MissingValueError,
    Not,
    ShapeEnv,
    UnbackedError,
    UsageError,
    evaluate,
    simplify,
    substitute,
    symbol,
    to_python,
)
from treadle_shapes.floats import (
    compare,
    defined,
    float_fn,
    float_symbol,
    floor_divide,
    holds,
    is_integer,
    quotient_of_c,
    round_to_int,
    same,
    to_float,
)

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
    for op, expected in (("lt", float.__lt__), ("ge", float.__ge__), ("eq", float.__eq__), ("ne", float.__ne__)):
        for a, b in ((to_float(s), c), (c, to_float(s))):
            x, y = (float(size), c) if a is not c else (c, float(size))
            condition = compare(op, a, b)
            assert isinstance(condition, bool) or condition.op in ("le0", "eq0", "ne0")
            assert evaluate(condition, {s: size}) == expected(x, y)


def test_exact_forms_are_integer_expressions():
    half = float_fn("fmul", to_float(s), 0.5)
    assert round_to_int("floor", half) is s // 2
    assert round_to_int("trunc", float_fn("truediv", s, t)) is s // t
    assert round_to_int("ceil", float_fn("truediv", s, t)) is (s + t - 1) // t
    assert round_to_int("floor", to_float(s)) is s


def test_constants_fold_and_comparisons_evaluate():
    assert float_fn("fadd", 1.5, 2) == 3.5
    assert compare("lt", 1.0, 2.0) is True
    e = float_fn("fadd", to_float(s), 0.5)
    assert evaluate(compare("lt", e, 4.0), {s: 3}) is True
    assert evaluate(compare("ge", e, 4.0), {s: 3}) is False
    assert to_python(compare("lt", e, 4.0)) == "(float(s) + 0.5) < 4.0"
    assert pickle.loads(pickle.dumps(e)) is e
    assert float_fn("fmul", to_float(s), 0.0) is not float_fn("fmul", to_float(s), -0.0)


# ---- float symbols

ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True, allow_subnormal=True)
x, y = float_symbol("x"), float_symbol("y")


def same_bits(a: float, b: float) -> bool:
    return a.hex() == b.hex() and math.copysign(1.0, a) == math.copysign(1.0, b) or (a != a and b != b)


_TWO = {
    "fadd": lambda a, b: a + b, "fsub": lambda a, b: a - b, "fmul": lambda a, b: a * b, "fdiv": lambda a, b: a / b,
    "fpow": lambda a, b: a**b, "fmod": lambda a, b: a % b, "ffloordiv": lambda a, b: a // b, "fmin": min, "fmax": max,
    "fcopysign": math.copysign, "math_atan2": math.atan2, "math_hypot": math.hypot,
}  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(sorted(_TWO)), ANY_FLOAT, ANY_FLOAT, st.booleans())
def test_every_operation_is_pythons(op, a, b, constant):
    """Values, exceptions, and whether the result is a float at all."""
    e = float_fn(op, x, b if constant else y)
    condition = defined(e)
    text = eval(f"lambda x, y: ({to_python(e)}, {to_python(condition)})", {"math": math})
    try:
        want = _TWO[op](a, b)
    except (ArithmeticError, ValueError) as error:
        for run in (lambda: evaluate(e, {x: a, y: b}), lambda: evaluate(condition, {x: a, y: b}), lambda: text(a, b)):
            with pytest.raises(type(error)):
                run()
        return
    assert evaluate(condition, {x: a, y: b}) is isinstance(want, float) is text(a, b)[1]
    if isinstance(want, float):
        assert same_bits(evaluate(e, {x: a, y: b}), want) and same_bits(text(a, b)[0], want)


@settings(max_examples=300, deadline=None)
@given(ANY_FLOAT, ANY_FLOAT)
def test_comparisons_know_nan(a, b):
    for op, expected in (("lt", a < b), ("ge", a >= b), ("eq", a == b), ("ne", a != b)):
        condition = compare(op, x, y)
        assert evaluate(condition, {x: a, y: b}) is expected
        assert evaluate(Not(condition), {x: a, y: b}) is not expected  # not the opposite comparison


@settings(max_examples=300, deadline=None)
@given(ANY_FLOAT, ANY_FLOAT)
def test_same_is_the_very_double(a, b):
    check = eval(f"lambda x: {to_python(same(x, a))}", {"math": math})
    assert check(a) and evaluate(same(x, a), {x: a})
    assert check(b) is same_bits(a, b)


def test_a_float_symbol_is_a_leaf():
    assert float_symbol("x") is x and x is not y and pickle.loads(pickle.dumps(x)) is x
    e = float_fn("fadd", x, 1.0)
    assert e.free_symbols == {x} and substitute(e, {x: 2.0}) == 3.0
    assert substitute(e, {x: y}) is float_fn("fadd", y, 1.0) and simplify(e) is e
    with pytest.raises(MissingValueError, match="x"):
        evaluate(e, {y: 1.0})


@settings(max_examples=200, deadline=None)
@given(ANY_FLOAT, ANY_FLOAT)
def test_floor_division(a, b):
    e = floor_divide(x, b)
    try:
        want = a // b
    except ZeroDivisionError:
        with pytest.raises(ZeroDivisionError):
            evaluate(e, {x: a})
    else:
        assert same_bits(evaluate(e, {x: a}), want)
    assert floor_divide(to_float(s), 2.0) is to_float(s // 2)


def test_decisions_about_floats():
    env = ShapeEnv()
    f = env.create_float(0.5, "lr")
    assert env.decide(compare("lt", f, 1.0)) is True
    assert env.specialize_float(float_fn("fmul", f, 4.0)) == 2.0
    check = env.compile_guards()
    assert check.source.count("v0") >= 2
    assert check(0.5) and not check(0.25) and not check(math.nan)
    with pytest.raises(ZeroDivisionError):
        env.check_float(float_fn("fdiv", 1.0, float_fn("fsub", f, 0.5)))
    env.check_float(float_fn("fadd", f, 0.5))
    negative = ShapeEnv()
    g = negative.create_float(-2.0, "g")
    with pytest.raises(UsageError, match="not a float"):
        negative.check_float(float_fn("fpow", g, 0.5))
    unknown = negative.create_float(None, "x.item()")
    with pytest.raises(UnbackedError, match=r"x\.item\(\)"):
        negative.specialize_float(unknown)


def test_a_guard_on_zero_and_nan_is_on_the_bits():
    for value, others in (
        (0.0, (-0.0, 1.0, math.nan)),
        (-0.0, (0.0,)),
        (math.nan, (0.0, math.inf)),
        (math.inf, (1.0,)),
    ):
        env = ShapeEnv()
        env.specialize_float(env.create_float(value, "f"))
        check = env.compile_guards()
        assert check(value), value
        assert not any(check(other) for other in others), value


def test_a_guard_that_cannot_be_computed_does_not_hold():
    env = ShapeEnv()
    f = env.create_float(0.5, "f")
    env.check_float(float_fn("fdiv", 1.0, f))
    check = env.compile_guards()
    assert check(2.0) and check(math.nan) and not check(0.0)
    assert check.why_fails(0.0) is not None and check.why_fails(2.0) is None


n = symbol("n", 0)


@pytest.mark.parametrize("a", [0.0, -0.0, 2.0, -2.0, math.inf, math.nan])
@pytest.mark.parametrize("size", [0, 1, 2, 5])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_quotients_of_c(a, size, sign):
    """n - 1.0 is 0.0 for a size of 1."""
    divisor = float_fn("fmul", float_fn("fsub", to_float(n), 1.0), sign)
    found = evaluate(quotient_of_c(a, divisor), {n: size})
    d = (size - 1.0) * sign
    expected = a / d if d else a * math.copysign(math.inf, d)
    assert same(found, expected)
    assert not found or math.copysign(1.0, found) == math.copysign(1.0, expected) or math.isnan(found)


def test_quotients_by_what_is_not_zero_are_plain():
    assert quotient_of_c(1.0, 4.0) == 0.25
    assert quotient_of_c(to_float(n), 4.0) is float_fn("fdiv", to_float(n), 4.0)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 6), st.sampled_from([0.0, 1.0, 1.5, -1.0, -0.5, 5.0]))
def test_differences_from_a_size_beside_zero_are_comparisons_of_the_size(size, number):
    difference = float_fn("fsub", to_float(n), number)
    for op in ("lt", "ge", "eq", "ne"):
        for a, b in ((difference, 0.0), (0.0, difference)):
            condition = compare(op, a, b)
            values = [evaluate(x, {n: size}) if x is difference else x for x in (a, b)]
            assert evaluate(condition, {n: size}) is compare(op, *values)


def test_a_guard_that_compares_a_complex_number_does_not_hold():
    x = float_symbol("x")
    for op in ("lt", "ge"):
        assert not holds(compare(op, float_fn("fpow", x, 0.5), 1.2), {x: -3.0})
    assert holds(compare("ge", float_fn("fpow", x, 0.5), 1.2), {x: 3.0})
