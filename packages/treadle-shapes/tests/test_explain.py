"""What a ShapeEnv tells people: violated declarations, contradictions, why a dimension is what it is."""

from __future__ import annotations

import re

import pytest

from treadle_shapes import (
    ConstraintError,
    ContradictionError,
    Eq,
    Ge,
    Le,
    Lt,
    MissingValueError,
    Ne,
    ShapeEnv,
    UsageError,
    symbol,
)


def dims(*sizes, lower=8, upper=64):
    env = ShapeEnv()
    return env, *[
        env.create_symbol(n, f"{name}.shape[0]", "dynamic", lower=lower, upper=upper)
        for n, name in zip(sizes, "xyz", strict=False)
    ]


@pytest.mark.parametrize(
    ("condition", "left_out"),
    [
        (lambda s: Eq(s % 8, 0), r"x\.shape\[0\] == 9"),
        (lambda s: Ne(s, 20), r"x\.shape\[0\] == 20"),
        (lambda s: Ne(s * 3, 60), r"x\.shape\[0\] == 20"),
        (lambda s: Le(s, 63), r"x\.shape\[0\] == 64"),
        (lambda s: Ge(s * s, 100), r"x\.shape\[0\] == 8"),
    ],
)
def test_a_guard_that_leaves_out_declared_sizes_is_reported_with_one(condition, left_out):
    for upper in (64, None):
        env, s = dims(16, upper=upper)
        assert env.decide(condition(s)) is True
        if upper or "64" not in left_out:
            with pytest.raises(ConstraintError, match=left_out) as caught:
                env.validate()
            assert re.search(r"test_explain\.py:\d+ in ", str(caught.value))


def test_dynamic_dims_that_are_made_equal_are_reported():
    env, s, r = dims(16, 16)
    env.decide(Eq(s, r))
    with pytest.raises(ConstraintError, match=r"x\.shape\[0\] == \d+ and y\.shape\[0\] == \d+"):
        env.validate()


def test_what_was_promised_is_no_violation():
    env, s, r = dims(16, 16)
    env.declare(Eq(s % 8, 0))
    env.declare(Eq(s, r))
    env.decide(Eq(r % 4, 0))
    env.decide(Ne(s, 20))
    env.decide(Eq(s * 2, r + s))
    env.validate()
    env.decide(Eq(s % 16, 0))
    with pytest.raises(ConstraintError, match="16"):
        env.validate()


def test_facts_that_exclude_each_other_only_together():
    """Nothing proves the second one false; the contradiction appears while it is put in."""
    env = ShapeEnv()
    u, v = env.create_unbacked("a.item()"), env.create_unbacked("b.item()")
    env.expect(Eq(u * v, 6))
    with pytest.raises(
        ContradictionError, match=r"a\.item\(\) == 4 .*contradicts.*a\.item\(\)\*b\.item\(\) == 6"
    ) as caught:
        env.expect(Eq(u, 4))
    assert not re.search(r"\b[su]\d+\b", str(caught.value).replace(__file__, ""))
    assert len(env.runtime_asserts) == 1 and env.prove(Eq(u, 4)) is None  # the refused one has left nothing behind
    env.expect(Eq(u, 3))
    assert env.prove(Eq(v, 2)) is True


def test_promises_about_the_sizes_at_hand():
    env = ShapeEnv()
    n, m = env.create_symbol(8, "n"), env.create_symbol(8, "m")
    with pytest.raises(ConstraintError, match="n >= 100 .* n == 8"):
        env.add_fact(Ge(n, 100))
    assert env.prove(Ge(n, 50)) is None
    env.declare(Eq(n, m))
    with pytest.raises(MissingValueError, match="m"):
        env.check_declared({n: 4})
    with pytest.raises(UsageError, match="symbols"):
        env.check_declared({"n": 4})  # type: ignore[dict-item]


def test_explanations_of_anything():
    env = ShapeEnv(duck_shape=True)
    n = env.create_symbol(8, "x.shape[0]")
    assert env.create_symbol(8, "y.shape[1]") is n
    u = env.create_unbacked("k.item()")
    env.expect(Le(u, n))
    env.decide(Lt(n, 30))
    assert "also y.shape[1]" in env.explain(n)
    assert "from 1 to 29" in env.explain(n)
    text = env.explain(u)
    assert "any integer" in text and re.search(
        r"k\.item\(\) <= x\.shape\[0\], checked at run time .*test_explain\.py:\d+", text
    )
    both = env.explain(n + u)
    assert both.startswith("x.shape[0] + k.item() is computed from") and env.explain(n) in both and text in both
    assert "constant" in env.explain(3)
    with pytest.raises(UsageError, match="other is no symbol of this environment"):
        env.explain(symbol("other"))
