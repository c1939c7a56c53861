"""Bounds of symbols, minimal lists of guards, and the compiled check."""

from __future__ import annotations

import itertools

import pytest

from treadle_shapes import Eq, Le, Lt, Ne, Or, ShapeEnv, UsageError, symbol
from treadle_shapes.guards import Guard, GuardFunction, bound_of, minimal

m, n = symbol("m", 1), symbol("n", 1, 8)


@pytest.mark.parametrize(
    ("condition", "bound"),
    [
        (Le(m, 5), (m, True, 5)),
        (Lt(4, m), (m, False, 5)),
        (Ne(m, 1), (m, False, 2)),
        (Ne(n, 8), (n, True, 7)),
        (Ne(m, 3), None),
        (Eq(m, 3), None),
        (Le(m, n), None),
        (Le(m * m, 9), None),
    ],
)
def test_bounds_of_one_symbol(condition, bound):
    assert bound_of(condition) == bound


@pytest.mark.parametrize("witness", [None, {m: 3, n: 2}])
def test_the_narrowest_bound_stays(witness):
    guards = [Guard(Le(m, 9)), Guard(Le(m, 5)), Guard(Le(m, 7)), Guard(Le(n, m))]
    kept, dropped = minimal(guards, witness)
    assert [g.expr for g in kept] == [Le(m, 5), Le(n, m)]
    assert {d.guard.expr: [g.expr for g in d.implied_by] for d in dropped} == {
        Le(m, 9): [Le(m, 5)],
        Le(m, 7): [Le(m, 5)],
    }


def test_later_guards_imply_earlier_ones():
    a, b = Guard(Or(Le(m, 3), Le(n, 3))), Guard(Le(n, 2))
    kept, dropped = minimal([a, b, a])
    assert kept == [b] and [d.guard for d in dropped] == [a] and dropped[0].implied_by == (b,)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_box_needs_no_compiler(count):
    symbols = tuple(symbol(f"s{k}", k, k + 2) for k in range(count))
    check = GuardFunction(symbols, (Guard(Ne(symbols[0], 0)),))
    assert not check.relations and check.box[0] == (1, 2)
    for values in itertools.product(range(6), repeat=count):
        inside = all(low <= v <= high for v, (low, high) in zip(values, check.box, strict=True))
        assert check(*values) is inside
        assert (check.why_fails(*values) is None) is inside
    with pytest.raises((UsageError, TypeError)):
        check(*[1] * (count + 1))


def test_relations_are_compiled_and_divisors_of_zero_fail():
    k = symbol("k", 0)
    check = GuardFunction((m, k), (Guard(Eq(m % k, 0)),))
    assert check(6, 3) and not check(6, 4) and not check(6, 0)
    assert check.bind({m: 6, k: 2}) and "ZeroDivisionError" not in check.source and "except" in check.source


def test_the_users_line_is_recorded():
    env = ShapeEnv()
    env.decide(Lt(env.create_symbol(4, "x"), 9))
    assert env.guards[0].where.startswith(f"{__file__}:") and "env.decide" in env.guards[0].where
