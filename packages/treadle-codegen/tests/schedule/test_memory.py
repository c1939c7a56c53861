"""The arena planner under random lifetimes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from treadle_codegen.schedule.memory import Lifetime, plan_arena

ALIGNMENT = 64


@st.composite
def _lifetimes(draw: st.DrawFn) -> list[Lifetime]:
    lives = []
    for k in range(draw(st.integers(0, 25))):
        first = draw(st.integers(0, 20))
        lives.append(Lifetime(f"t{k}", draw(st.integers(0, 5000)), first, first + draw(st.integers(0, 8))))
    return lives


@given(_lifetimes())
def test_buffers_that_are_live_together_never_overlap(lives: list[Lifetime]) -> None:
    plan = plan_arena(lives, ALIGNMENT)
    assert set(plan.offsets) == {life.name for life in lives}
    for k, a in enumerate(lives):
        start = plan.offsets[a.name]
        assert start % ALIGNMENT == 0
        assert start + a.size <= plan.size
        for b in lives[:k]:
            if a.first <= b.last and b.first <= a.last and a.size and b.size:
                other = plan.offsets[b.name]
                assert start + a.size <= other or other + b.size <= start, (a, b)


def test_memory_is_reused_when_lifetimes_do_not_meet() -> None:
    lives = [Lifetime(f"t{k}", 1 << 20, k, k + 1) for k in range(10)]
    assert plan_arena(lives, ALIGNMENT).size == 2 << 20
