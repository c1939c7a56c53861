"""Every function that states an equation has a property test of it: a new rule without one fails here."""

from __future__ import annotations

import inspect
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies_shapes import (
    ANY,
    EXAMPLES,
    INDICES,
    SIZES,
    SYMBOLS,
    conditions,
    divisors,
    expressions,
    points,
    positive,
    ranges_and_points,
    tight_conditions,
)

from treadle_shapes import floats, guards, logic, rewrite, rules
from treadle_shapes.bounds import KnownRanges
from treadle_shapes.expr import Eq, Le, Not, Symbol, evaluate, maximum, minimum, symbol
from treadle_shapes.floats import FLOAT_OPS, FloatExpr, float_fn, float_symbol, to_float
from treadle_shapes.nodes import BoolExpr, Expr, Fn, Sum

MODULES = (rules, rewrite, logic, floats, guards)


def value(e, values):
    return evaluate(e, values)


# -- rules: (a op n) is what the rule gives, wherever it gives something ------------------------------------------------


def division_rule(name):
    rule = getattr(rules, name)
    remainder = rule in rules.MOD_RULES

    def check(data):
        known, values = data.draw(ranges_and_points())
        x, n, m = data.draw(expressions), data.draw(positive), data.draw(positive)
        # Operands made to fit the left sides of the equations, besides any others.
        y = data.draw(st.sampled_from([0, 1, *INDICES]))
        a = data.draw(st.sampled_from([x, x * n + y, (x * n + y) % (n * m) + y, x // m, x % (n * m), x * n + n]))
        by = data.draw(st.sampled_from([n, n * m, n * SIZES[0]]))
        facts = {}
        if data.draw(st.booleans()):
            s, k = data.draw(st.sampled_from(INDICES)), data.draw(st.integers(2, 12))
            facts = {s % k: values[s] % k, (s + 3) % (k + 1): (values[s] + 3) % (k + 1)}
        if isinstance(a, Expr):
            result = rule(a, by, KnownRanges(known, facts))
            p, q = value(a, values), value(by, values)
            assert result is None or value(result, values) == (p % q if remainder else p // q)

    return check


def split_multiple(data):
    a, n, values = data.draw(expressions), data.draw(divisors), data.draw(points())
    quotient, rest = rules.split_multiple(a, n)
    assert value(quotient, values) * value(n, values) + value(rest, values) == value(a, values)


def small_part(data):
    known, values = data.draw(ranges_and_points())
    a, n = data.draw(expressions), data.draw(positive)
    found = rules._small_part(a, n, KnownRanges(known)) if isinstance(a, Expr) else None
    if found is not None:
        g, x, y = (value(e, values) for e in found)
        assert value(a, values) == g * x + y and value(n, values) % g == 0 and 0 <= y < g


def extremum(data):
    known, values = data.draw(ranges_and_points())
    args = tuple(data.draw(st.lists(expressions, min_size=1, max_size=4)))
    numbers = [value(e, values) for e in args]
    assert value(rules._extremum("min", args, KnownRanges(known)), values) == min(numbers)
    assert value(rules._extremum("max", args, KnownRanges(known)), values) == max(numbers)


def shift(name):
    def check(data):
        a, values = data.draw(expressions), data.draw(points())
        n = data.draw(st.one_of(st.integers(0, 6), st.just(SIZES[0])))
        x, k = value(a, values), value(n, values)
        want = x << k if name == "shift_left" else x >> k
        assert value(getattr(rules, name)(a, n), values) == want

    return check


# -- rewriting ----------------------------------------------------------------------------------------------------------


def join_quotient_remainder(data):
    known, values = data.draw(ranges_and_points())
    x, n, c = data.draw(expressions), data.draw(positive), data.draw(st.integers(-3, 3))
    e = c * (x % n) + c * n * (x // n) + data.draw(expressions)
    if isinstance(e, Sum):
        joined = rewrite.join_quotient_remainder(e, KnownRanges(known))
        assert joined is None or value(joined, values) == value(e, values)


def exact_quotient(data):
    values = data.draw(points())
    x, n = data.draw(st.sampled_from(SYMBOLS)), data.draw(st.integers(2, 12))
    fact = {x % n: values[x] % n}
    e = data.draw(st.integers(-3, 3)) * n * (x // n) + data.draw(expressions)
    if isinstance(e, Expr):
        exact = rewrite.exact_quotient(e, KnownRanges({}, fact))
        assert exact is None or value(exact, values) == value(e, values)


# -- conditions ---------------------------------------------------------------------------------------------------------


def comparison(name):
    def check(data):
        known, values = data.draw(ranges_and_points())
        p = data.draw(st.integers(-6, 6)) * data.draw(expressions) + data.draw(st.integers(-9, 9))
        number = value(p, values)
        want = number <= 0 if name == "le_zero" else number == 0
        assert value(getattr(logic, name)(p, KnownRanges(known)), values) == want

    return check


def negation(data):
    c, values = data.draw(conditions), data.draw(points())
    assert value(Not(c), values) == (not value(c, values)) and value(Not(Not(c)), values) == value(c, values)


def combination(data):
    parts, values = data.draw(st.lists(conditions, max_size=4)), data.draw(points())
    parts += [Not(parts[0])] if parts and data.draw(st.booleans()) else []
    truths = [value(c, values) for c in parts]
    assert value(logic.And(*parts), values) == all(truths) and value(logic.Or(*parts), values) == any(truths)


def bound_of(data):
    values = data.draw(points())
    condition = data.draw(st.one_of(tight_conditions(values), conditions))
    s = symbol("end", data.draw(st.integers(-2, 2)), 5)
    values[s] = data.draw(st.integers(s.lower, s.upper))
    condition = data.draw(
        st.sampled_from([condition, Not(Eq(s, s.lower)), Not(Eq(s, s.upper)), Not(Eq(s, 3)), Le(s, 4)])
    )
    found = guards.bound_of(condition) if isinstance(condition, BoolExpr) else None
    if found is not None:
        bounded, upper, end = found
        assert isinstance(bounded, Symbol)
        inside = values[bounded] <= end if upper else values[bounded] >= end
        assert inside == value(condition, values)


# -- floats -------------------------------------------------------------------------------------------------------------

NUMBERS = st.one_of(
    st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 0.5, 1.0, -1.0, 3.0]),
    st.floats(width=32, allow_nan=True),
)
X, Y = float_symbol("x"), float_symbol("y")
S = symbol("s", 1)


def same(data):
    x, number = data.draw(NUMBERS), data.draw(NUMBERS)
    want = x.hex() == number.hex()
    assert bool(value(floats.same(X, number), {X: x})) == want


def floor_divide(data):
    size, n = data.draw(st.integers(1, 2**40)), data.draw(st.sampled_from([1, 2, 3, 7, 2.0, 0.5, 1.5]))
    found = floats.floor_divide(to_float(S), float(n))
    assert value(found, {S: size}) == float(size) // float(n)
    a, b = data.draw(NUMBERS), data.draw(st.sampled_from([0.5, -2.0, 3.0]))
    assert repr(value(floats.floor_divide(X, b), {X: a})) == repr(a // b)


def quotient_of_c(data):
    a, b = data.draw(NUMBERS), data.draw(st.one_of(NUMBERS, st.sampled_from([0.0, -0.0])))
    want = a / b if b != 0.0 else a * math.copysign(math.inf, b)  # nan where a is 0, too
    assert repr(value(floats.quotient_of_c(X, Y), {X: a, Y: b})) == repr(want)
    assert repr(value(floats.quotient_of_c(X, b), {X: a})) == repr(want)


def compare_size(data):
    size, c = data.draw(st.integers(1, 20)), data.draw(st.sampled_from([0.0, 0.5, 3.0, 3.5, -1.0, -0.5, 7.25, 20.0]))
    for op, holds in (("lt", float.__lt__), ("ge", float.__ge__), ("eq", float.__eq__), ("ne", float.__ne__)):
        assert value(floats._compare_size(op, to_float(S), c), {S: size}) == holds(float(size), c)
        assert value(floats._compare_size(op, c, to_float(S)), {S: size}) == holds(c, float(size))


def as_ratio(data):
    size, factor = data.draw(st.integers(1, 2**20)), data.draw(st.sampled_from([0.5, 0.25, 1.5, 0.3, 7.0, 0.125, -0.5]))
    x = data.draw(
        st.sampled_from([to_float(S), float_fn("truediv", S, 3), float_fn("fmul", to_float(S), factor),
                         float_fn("fdiv", to_float(S), 8.0)])
    )  # fmt: skip
    found = floats._as_ratio(x)
    if found is not None:
        a, n = (value(e, {S: size}) for e in found)
        assert n > 0 and a / n == value(x, {S: size})


def round_to_int(data):
    size, factor = data.draw(st.integers(1, 2**40)), data.draw(st.sampled_from([2.0, 0.5, 1.5, 0.3, 1 / 3, -0.5, 1e-3]))
    for how, exact in (("floor", math.floor), ("ceil", math.ceil), ("trunc", int), ("round", round)):
        x = float_fn("fmul", to_float(S), factor)
        assert value(floats.round_to_int(how, x), {S: size}) == exact(float(size) * factor)


PROPERTIES = {
    **{f"rules.{rule.__name__}": division_rule(rule.__name__) for rule in rules.FLOORDIV_RULES + rules.MOD_RULES},
    "rules.split_multiple": split_multiple,
    "rules._small_part": small_part,
    "rules._extremum": extremum,
    "rules.shift_left": shift("shift_left"),
    "rules.shift_right": shift("shift_right"),
    "rewrite.join_quotient_remainder": join_quotient_remainder,
    "rewrite.exact_quotient": exact_quotient,
    "logic.le_zero": comparison("le_zero"),
    "logic.eq_zero": comparison("eq_zero"),
    "logic.Not": negation,
    "logic._combine": combination,
    "guards.bound_of": bound_of,
    "floats.same": same,
    "floats.floor_divide": floor_divide,
    "floats.quotient_of_c": quotient_of_c,
    "floats._compare_size": compare_size,
    "floats._as_ratio": as_ratio,
    "floats.round_to_int": round_to_int,
}


def stated():
    """Functions whose docstring has an equation."""
    for module in MODULES:
        for name, function in vars(module).items():
            if (
                inspect.isfunction(function)
                and function.__module__ == module.__name__
                and "==" in (function.__doc__ or "")
            ):
                yield f"{module.__name__.partition('.')[2]}.{name}"


def test_every_stated_equation_has_a_property():
    assert set(stated()) == set(PROPERTIES)


def test_every_rule_states_its_equation():
    for rule in (*rules.FLOORDIV_RULES, *rules.MOD_RULES):
        assert "==" in (rule.__doc__ or ""), rule.__name__


@pytest.mark.parametrize("name", PROPERTIES)
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_equation_holds(name, data):
    PROPERTIES[name](data)


@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(st.data())
def test_construction_keeps_the_value(data):
    """The steps inside floordiv, mod and power that have their equation beside them."""
    a, values = data.draw(expressions), data.draw(points())
    n = data.draw(st.one_of(divisors, st.sampled_from([ANY - 1, -SIZES[0], SIZES[0] * -2])))
    x, k = value(a, values), value(n, values)
    if k:
        assert value(rules.floordiv(a, n), values) == x // k
        assert value(rules.mod(a, n), values) == x % k
    exponent = data.draw(st.integers(0, 5))
    assert value(rules.power(a, exponent), values) == x**exponent
    assert value(minimum(a, n), values) == min(x, k) and value(maximum(a, n), values) == max(x, k)
    assert not isinstance(rules.floordiv(a, 1), Fn) or isinstance(a, Fn)


@pytest.mark.parametrize("op", sorted(FLOAT_OPS))
def test_every_float_operation_folds_and_evaluates(op):
    count = 1 if op in ("float", "fneg", "fabs", "fround") or op.startswith("math_") else 3 if op == "fwhere" else 2
    count = 2 if op in ("math_pow", "math_atan2", "math_hypot", "math_fmod") else count
    args = (0.5,) * count if op != "fwhere" else (True, 0.5, 0.25)
    args = (1.5,) if op == "math_acosh" else args
    folded = float_fn(op, *args)
    symbolic = float_fn(op, *[X if type(a) is float else a for a in args]) if op != "fwhere" else None
    if symbolic is not None:
        assert isinstance(symbolic, FloatExpr) and value(symbolic, {X: args[0]}) == folded
