"""Symbols, decisions, guards, constraints, unbacked values, explanations."""

from __future__ import annotations

import pytest

from treadle_shapes import (
    And,
    ConstraintError,
    ContradictionError,
    DivisionByZeroError,
    Eq,
    Ge,
    Le,
    Lt,
    Ne,
    ShapeEnv,
    SizeOverflowError,
    UnbackedError,
    UndecidedError,
    UsageError,
    maximum,
)


def exprs(env):
    return [str(g.expr) for g in env.guards]


def test_policies():
    env = ShapeEnv()
    assert env.create_symbol(5, "x", "static") == 5
    assert env.create_symbol(0, "x") == 0
    assert env.create_symbol(1, "x") == 1
    one = env.create_symbol(1, "x", "dynamic")
    assert str(one) == "s0" and env.hints[one] == 1
    assert env.guard_or_false(Ne(one, 1)) is False  # at this hint the general answer for sizes above 1 does not hold
    with pytest.raises(UsageError, match="static, auto, dynamic"):
        env.create_symbol(5, "x", "sometimes")
    with pytest.raises(UsageError, match="must be an int"):
        env.create_symbol(True, "x")
    with pytest.raises(SizeOverflowError, match="64 bits"):
        env.create_symbol(2**63, "x")
    with pytest.raises(ConstraintError, match=r"outside its declared range \[2, 4\]"):
        env.create_symbol(5, "x", "dynamic", lower=2, upper=4)


def test_zero_one_specialisation():
    env = ShapeEnv(specialize_zero_one=True)
    assert env.create_symbol(1, "x") == 1
    s = env.create_symbol(2, "y")
    assert s.lower == 2
    assert env.decide(Ne(s, 1)) and not env.guards
    assert not env.compile_guards([s])(1)


def test_duck_shaping():
    env = ShapeEnv(duck_shape=True)
    a, b, c = (env.create_symbol(n, name) for n, name in ((7, "a"), (7, "b"), (8, "c")))
    assert a is b and a is not c
    assert env.shared == [(a, "b")]
    apart = ShapeEnv()
    assert apart.create_symbol(7, "a") is not apart.create_symbol(7, "b")


def test_named_dims_are_one_symbol():
    env = ShapeEnv()
    a = env.create_named("batch", 7, "x.size()[0]")
    assert env.create_named("batch", 7, "y.size()[0]") is a
    with pytest.raises(ConstraintError, match=r"'batch' is 7 at x.size\(\)\[0\] but 8 at z.size\(\)\[0\]"):
        env.create_named("batch", 8, "z.size()[0]")


def test_a_decision_is_recorded_once_and_its_consequences_are_facts():
    env = ShapeEnv()
    a, b = env.create_symbol(4, "a"), env.create_symbol(9, "b")
    assert env.decide(Lt(a, 10)) is True
    assert env.decide(Lt(a, 12)) is True
    assert env.decide(Lt(a, 10)) is True
    assert exprs(env) == ["s0 <= 9"]
    assert env.decide(Le(a, b)) and env.decide(Le(a, b + 3))
    assert env.decide(Lt(b, a)) is False
    assert len(env.guards) == 2


def test_equality_becomes_a_substitution():
    env = ShapeEnv()
    a, b, c = env.create_symbol(4, "a"), env.create_symbol(4, "b"), env.create_symbol(8, "c")
    assert env.decide(Eq(a, b))
    assert env.simplify(b * 3) is a * 3
    assert env.decide(Eq(c, a + b))
    assert env.simplify(c) is a * 2
    assert env.decide(Eq(c % 2, 0))
    assert exprs(env) == ["s0 == s1", "2*s0 == s2"]


def test_divisibility_is_a_fact():
    env = ShapeEnv()
    a = env.create_symbol(16, "a")
    assert env.decide(Eq(a % 8, 0))
    assert env.simplify(a // 8 * 8) is a
    assert env.simplify(a // 8 * 16 + 1) is 2 * a + 1
    assert env.decide(Eq(a % 8, 3)) is False
    assert len(env.guards) == 1


def test_specialisation_and_hints():
    env = ShapeEnv()
    a = env.create_symbol(6, "a")
    assert env.hint(a * 2 + 1) == 13
    assert env.specialize(a * 2) == 12
    assert env.simplify(a + 1) == 7
    assert exprs(env) == ["s0 == 6"]


def test_declared_dynamic_must_not_be_specialised():
    env = ShapeEnv()
    a = env.create_symbol(6, "L['x'].size()[0]", "dynamic", lower=2, upper=64)
    with pytest.raises(ConstraintError, match=r"L\['x'\].size\(\)\[0\] is declared dynamic.*test_env.py.*constant 6"):
        env.specialize(a)
    assert not env.guards and env.simplify(a) is a


def test_declared_range_not_covered_is_reported_with_its_line():
    env = ShapeEnv()
    a = env.create_symbol(6, "rows", "dynamic", lower=2, upper=64)
    env.validate()
    assert env.decide(Le(a, 16))
    with pytest.raises(ConstraintError, match=r"rows is declared to range over \[2, 64\].*test_env.py.*only \[2, 16\]"):
        env.validate()


def test_promises():
    env = ShapeEnv()
    a, b = env.create_symbol(16, "a"), env.create_symbol(16, "b")
    env.declare(Eq(a % 8, 0))
    env.declare(Eq(a, b))
    assert env.decide(Eq(b % 4, 0)) and not env.guards
    env.check_declared({a: 24, b: 24})
    with pytest.raises(ConstraintError, match="a%8 == 0, promised at .*test_env.py.*does not hold for a == 20"):
        env.check_declared({a: 20, b: 20})
    with pytest.raises(ContradictionError, match="contradicts what was declared before"):
        env.declare(Ne(a, b))
    with pytest.raises(ConstraintError, match="does not hold for the given sizes: a == 16"):
        env.declare(Lt(a, 10))
    assert env.compile_guards([a, b])(24, 24) and not env.compile_guards([a, b])(20, 20)


def test_declared_range_is_checked_later():
    env = ShapeEnv()
    a = env.create_symbol(6, "rows", "dynamic", lower=2, upper=64)
    with pytest.raises(ConstraintError, match=r"rows == 65 is outside its declared range \[2, 64\]"):
        env.check_declared({a: 65})
    assert not env.compile_guards([a])(65)


def test_unbacked_values():
    env = ShapeEnv()
    a, u = env.create_symbol(6, "a"), env.create_unbacked("x.item()")
    assert env.hint(u + 1) is None and env.is_unbacked(u * a)
    with pytest.raises(UnbackedError, match=r"x.item\(\) <= 3 must be known while tracing.*test_env.py"):
        env.decide(Le(u, 3))
    assert env.guard_or_true(Le(u, 3)) is True and env.guard_or_false(Le(u, 3)) is False
    assert env.expect(Lt(u, a), "index in range") is True
    assert env.expect(Ge(u, 0)) is True
    assert [a.message for a in env.runtime_asserts] == ["index in range", "x.item() >= 0"]
    assert env.decide(Lt(u, a + 1)) is True
    assert env.decide(Ge(u, -1)) is True
    assert not env.guards and len(env.runtime_asserts) == 2
    assert env.expect(Eq(u, a)) is False
    with pytest.raises(UnbackedError):
        env.specialize(u)


def test_guard_or_takes_the_answer_for_sizes_above_one():
    env = ShapeEnv()
    a = env.create_symbol(6, "a")
    assert env.guard_or_false(Eq(a, 1)) is False
    assert env.guard_or_false(Ne(a, 1)) is True
    assert env.guard_or_false(Lt(8, a * 8)) is True
    assert not env.guards
    assert env.guard_or_true(Le(a, 9)) is True
    assert exprs(env) == ["s0 <= 9"]  # "no size is 1" does not settle it
    assert env.guard_or_true(Le(a, 3)) is False
    assert exprs(env) == ["s0 <= 9", "s0 >= 4"]
    assert env.decide(Ne(a, 1)) is True


def test_a_size_that_is_computed_stays_above_one():
    env = ShapeEnv()
    a, b = env.create_symbol(9, "a"), env.create_symbol(9, "b")
    assert env.guard_or_false(Eq(a // 4, 1)) is False
    assert exprs(env) == ["s0 >= 8"]
    assert env.guard_or_false(Eq((b - 1) // 2 + 1, 1)) is False
    assert exprs(env)[1:] == ["s1 >= 3"]


def test_a_size_that_is_computed_as_one_is_the_constant():
    env = ShapeEnv()
    a, b, c = (env.create_symbol(n, name) for n, name in ((5, "a"), (9, "b"), (2, "c")))
    assert env.guard_or_false(Eq(a // 4, 1)) is True
    assert env.simplify(a // 4) == 1 and env.simplify(3 * (a // 4) + b) == b + 3
    assert env.bounds(a) == (4, 7)
    d = env.create_symbol(3, "d")
    assert env.decide(Le(d // 2, 1)) and env.guard_or_false(Eq(d // 2, 1)) is True
    assert env.simplify(d // 2) == 1 and env.bounds(d) == (2, 3)
    assert env.guard_or_false(Eq(b // 4 - c // 2, 1)) is True
    assert env.simplify(b // 4 - c // 2 + 2) == 3 and env.simplify(c // 2 - b // 4 + 2) == 1


def test_an_integer_input_is_no_size():
    env = ShapeEnv()
    k = env.create_symbol(6, "k", size=False)
    assert env.guard_or_false(Ne(k, 1)) is True
    assert exprs(env) == ["s0 != 1"]


def test_division_by_what_can_be_zero():
    env = ShapeEnv()
    a, u = env.create_symbol(6, "a", size=False), env.create_unbacked("k.item()")
    env.check_divisor(a)
    assert exprs(env) == ["s0 != 0"]
    with pytest.raises(DivisionByZeroError, match=r"k.item\(\).*can be 0.*test_env.py.*torch._check\(k.item\(\) > 0\)"):
        env.check_divisor(u)
    env.expect(Ge(u, 1))
    env.check_divisor(u)
    zero = env.create_symbol(0, "n", size=False)
    with pytest.raises(DivisionByZeroError, match="division by n, which is 0"):
        env.check_divisor(zero)


def test_overflow_is_reported():
    env = ShapeEnv()
    a = env.create_symbol(2**40, "a")
    with pytest.raises(SizeOverflowError, match="does not fit in 64 bits"):
        env.specialize(a * a)


def test_suppressed_guards_are_answers_only():
    env = ShapeEnv()
    a = env.create_symbol(6, "a")
    with env.suppress_guards():
        assert env.decide(Lt(a, 10)) is True
    assert not env.guards and env.prove(Lt(a, 10)) is None


def test_guard_function():
    env = ShapeEnv()
    a, b = env.create_symbol(6, "a"), env.create_symbol(12, "b")
    env.decide(Eq(b, a * 2))
    env.decide(Lt(a, 100))
    check = env.compile_guards([a, b])
    assert check(6, 12) and check(7, 14)
    assert not check(7, 15) and not check(100, 200) and not check(0, 0)
    assert "2*s0 == s1 fails for s0=7, s1=15 (needed by" in check.why_fails(7, 15)
    assert check.why_fails(0, 0) == "s0 == 0 is outside [1, inf]"
    assert check.why_fails(6, 12) is None
    assert check.bind({a: 7, b: 14})


def test_explanations():
    env = ShapeEnv()
    a = env.create_symbol(6, "L['x'].size()[0]")
    b = env.create_symbol(6, "L['y'].size()[0]")
    env.decide(Lt(a, 100))
    env.decide(Eq(a, b))
    text = env.explain(a)
    assert "is dynamic, from 1 to 99" in text and "L['x'].size()[0] <= 99, at" in text and "test_env.py" in text
    assert "always equals L['x'].size()[0]" in env.explain(b)
    env.specialize(a)
    text = env.explain(a)
    assert "is static: it must be 6" in text and "<= 99 (at" in text and "follows from" in text
    assert "constant" in env.explain(4)


def test_contradicting_assumption():
    env = ShapeEnv()
    u = env.create_unbacked("u", lower=3)
    with pytest.raises(ContradictionError, match="known to be false"):
        env.add_fact(Lt(u, 2))


def test_unbacked_symbols_never_stand_for_backed_ones():
    env = ShapeEnv()
    sizes = [env.create_symbol(8 + n, f"x.size()[{n}]") for n in range(11)]
    late = sizes[10]
    u, v = env.create_unbacked("t.item()"), env.create_unbacked("k.item()")
    assert env.expect(Eq(u, late)) and env.simplify(u) is late
    assert env.expect(Eq(sizes[0], v * 2)) and env.simplify(sizes[0]) is sizes[0]
    assert env.decide(Ge(sizes[0], 5)) and env.decide(Ge(u, 5))
    assert exprs(env) == ["s0 >= 5", "s10 >= 5"]
    check = env.compile_guards([sizes[0], late])
    assert check(5, 5) and not check(4, 5) and not check(5, 4)


def test_unbacked_error_holds_the_question():
    env = ShapeEnv()
    u = env.create_unbacked("t.item()")
    with pytest.raises(UnbackedError) as caught:
        env.decide(Ge(u, 4))
    assert caught.value.expr is Ge(u, 4)
    with pytest.raises(UnbackedError) as caught:
        env.specialize(u + 1)
    assert caught.value.expr is u + 1


def test_assumptions_prove_and_leave_no_trace():
    env = ShapeEnv()
    n, m = env.create_symbol(5, "n"), env.create_symbol(7, "m")
    assert env.prove_under([Le(n, 1)], Eq(n, 1)) is True
    assert env.prove_under([Le(n, 1), Eq(m, n)], Ge(m, 2)) is False
    assert env.prove_under([Le(n, 1)], Eq(m, 1)) is None
    assert env.prove_under([Le(n, 0)], Eq(m, 1)) is None  # sizes here are never 0: nothing follows from nonsense
    assert env.prove(Eq(n, 1)) is None and not env.guards
    assert env.simplify_under([Le(n, 1)], m * n + n) == m + 1
    assert env.simplify_under([Le(n, 0)], m * n) == m * n


def test_refusing_guards():
    env = ShapeEnv()
    n, u = env.create_symbol(5, "n"), env.create_unbacked("u")
    with env.refusing_guards():
        assert env.decide(Ge(n, 1)) is True
        with pytest.raises(UndecidedError, match="n >= 2 would need a guard"):
            env.decide(Ge(n, 2))
        with pytest.raises(UndecidedError):
            env.specialize(n)
        with pytest.raises(UndecidedError, match="would become a fact"):
            env.expect(Ge(u, 3))
    assert not env.guards and not env.runtime_asserts
    assert env.decide(Ge(n, 2)) is True and len(env.guards) == 1


def test_general_answers():
    env = ShapeEnv()
    n = env.create_symbol(5, "n")
    with env.size_oblivious_answers():
        assert env.decide(Eq(n, 1)) is False and not env.guards
        env.check_divisor(n - 1)  # dividing is no short cut
        assert exprs(env) == [str(Ne(n, 1))]
        assert env.decide(Ge(n, 3)) is True and exprs(env) == [str(Ne(n, 1)), str(Ge(n, 3))]
    env = ShapeEnv()
    one = env.create_symbol(1, "n", "dynamic")
    with env.size_oblivious_answers():  # the size at hand is 1: no general answer to take
        assert env.decide(Ge(one * env.create_symbol(5, "m"), 6)) is False and env.guards


def test_assumptions():
    env = ShapeEnv()
    u, v = env.create_unbacked("x.shape[0]", lower=0), env.create_unbacked("t.item()")
    highest = env.create_unbacked("int(index.max())")
    env.expect(Ge(highest + 1, 0))  # a tensor has that size
    with pytest.raises(UnbackedError):
        env.decide(Eq(u, 0))
    with env.size_oblivious_answers(), pytest.raises(UnbackedError):
        env.decide(Eq(u, 0))
    with env.size_oblivious_answers(assume=True):
        with pytest.raises(UnbackedError):
            env.decide(Ge(u, 5))  # usual is neither
        with pytest.raises(UnbackedError):
            env.decide(Eq(v, 0))  # a number, not a size
        assert env.decide(Eq(highest + 1, 1)) is False
        assert env.decide(Eq(u * 4, 0)) is False
        assert env.decide(Ge(u, 1)) is True  # follows
        env.check_divisor(u)
        assert env.decide(Eq(u, 1)) is False
        with env.suppress_guards():
            assert env.decide(Ge(u, 2)) is True
    assert [str(a.condition) for a in env.runtime_asserts[1:]] == [str(Ne(highest, 0)), str(Ne(u, 0)), str(Ne(u, 1))]
    assert len(env.assumptions) == 3 and not env.guards
    with pytest.raises(UnbackedError):
        env.decide(Eq(u, 7))


@pytest.mark.parametrize(
    ("condition", "constant"),
    [
        (lambda s: Eq(s % 8, 0), False),
        (lambda s: Eq(s // 8, 2), False),
        (lambda s: Eq(maximum(s, 4), s), False),
        (lambda s: Eq(maximum(s, 16), 16), False),
        (lambda s: Eq(2 * s + 1, 33), True),
        (lambda s: Eq(s * s, 256), True),
        (lambda s: And(Le(s, 16), Ge(s, 16)), True),
    ],
)
def test_a_dynamic_dim_may_be_narrowed_but_not_fixed(condition, constant) -> None:
    env = ShapeEnv()
    s = env.create_symbol(16, "x.size()[0]", "dynamic")
    if constant:
        with pytest.raises(ConstraintError, match=r"x\.size\(\)\[0\] is declared dynamic, but .* the constant 16"):
            env.decide(condition(s))
    else:
        assert env.decide(condition(s))


def test_an_unbacked_number_is_not_expressed_by_later_ones():
    """A graph uses a size before the numbers that it turns out to be the sum of."""
    env = ShapeEnv()
    size, *parts = (env.create_unbacked(name, lower=0) for name in ("size", "a", "b", "c", "d"))
    a, b, c, d = parts
    env.expect(Eq(size, a * b + c * d))
    assert env.simplify(size) == size
    assert env.prove(Eq(size, a * b + c * d)) is True
    later = env.create_unbacked("later", lower=0)
    env.expect(Eq(later, size + a))
    assert env.simplify(later) == size + a
