"""Dimensions become dynamic when they have changed, or when they are marked."""

from __future__ import annotations

import pytest

from treadle_shapes import ConstraintError, Ne, ShapeEnv, UsageError
from treadle_shapes.automatic import AutomaticDynamic, Mark


def policies(plan):
    return [(dim.policy, dim.hint) if dim.policy != "static" else dim.size for dim in plan]


def test_first_call_is_static_then_what_changed_is_dynamic():
    memory = AutomaticDynamic()
    assert policies(memory.plan("x", (4, 8))) == [4, 8]
    assert policies(memory.plan("x", (5, 8))) == [("auto", 5), 8]
    assert policies(memory.plan("x", (5, 9))) == [("auto", 5), ("auto", 9)]
    assert policies(memory.plan("y", (5, 9))) == [5, 9]


def test_a_batch_of_one_is_traced_with_a_size_seen_before():
    memory = AutomaticDynamic()
    memory.plan("x", (4, 8))
    (batch, _) = memory.plan("x", (1, 8))
    assert batch.size == 1 and batch.policy == "auto" and batch.hint == 4
    env = ShapeEnv()
    s = batch.create(env, "x.size()[0]")
    assert env.guard_or_false(Ne(s, 1))
    assert env.compile_guards([s])(1)


def test_zero_stays_constant():
    memory = AutomaticDynamic()
    memory.plan("x", (4,))
    assert policies(memory.plan("x", (0,))) == [0]


def test_settings():
    assert policies(AutomaticDynamic(dynamic=True).plan("x", (4, 1))) == [("auto", 4), 1]
    never = AutomaticDynamic(dynamic=False)
    never.plan("x", (4,))
    assert policies(never.plan("x", (5,))) == [5]


def test_marks():
    memory = AutomaticDynamic()
    plan = memory.plan("x", (4, 8), {0: Mark("dynamic", 2, 64, "batch"), -1: Mark("static")})
    assert policies(plan) == [("dynamic", 4), 8]
    assert policies(memory.plan("x", (4, 9), {-1: Mark("static")})) == [4, 9]
    assert policies(memory.plan("z", (4,), {0: Mark("auto")})) == [("auto", 4)]
    env = ShapeEnv()
    s = plan[0].create(env, "x.size()[0]")
    assert memory.plan("y", (4,), {0: Mark("dynamic", name="batch")})[0].create(env, "y.size()[0]") is s
    with pytest.raises(ConstraintError, match=r"x.size\(\)\[0\] == 65 is outside the range \[2, 64\]"):
        memory.plan("x", (65, 8), {0: Mark("dynamic", 2, 64)})
    with pytest.raises(UsageError, match="dimension 3 of x is marked, but it has 2"):
        memory.plan("x", (4, 8), {3: Mark("auto")})
