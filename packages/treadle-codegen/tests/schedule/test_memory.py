"""The arena planner under random lifetimes."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle_codegen.schedule import memory
from treadle_codegen.schedule.memory import ArenaPlan, Lifetime, plan_arena, verify_arena

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


@given(_lifetimes())
def test_many_buffers_that_are_live_together_never_overlap(lives: list[Lifetime]) -> None:
    plan = memory._by_first_step(lives, ALIGNMENT)
    assert verify_arena(plan, lives, ALIGNMENT) == []


def _unrolled(steps: int) -> list[Lifetime]:
    """A state, three temporaries and a result of each step that all live to the end."""
    lives = []
    for k in range(steps):
        lives += [Lifetime(f"s{k}", 4096, 4 * k, 4 * k + 5), Lifetime(f"r{k}", 1024, 4 * k + 3, 4 * steps)]
        lives += [Lifetime(f"t{k}_{j}", 2048 * (j + 1), 4 * k + j, 4 * k + j + 1) for j in range(3)]
    return lives


def test_many_buffers_take_no_more_memory_than_is_live_at_once() -> None:
    lives = _unrolled(300)
    changes = [0] * (4 * 300 + 8)
    for life in lives:
        changes[life.first] += life.size
        changes[life.last + 1] -= life.size
    assert plan_arena(lives, ALIGNMENT).size <= 1.05 * max(accumulate(changes))


def test_the_work_for_many_buffers_grows_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    for name in ("take", "give_back", "_add", "_remove"):
        original = getattr(memory._FreeMemory, name)
        monkeypatch.setattr(
            memory._FreeMemory, name, lambda self, *a, of=original: calls.append(len(self._by_size)) or of(self, *a)
        )
    counts = []
    for steps in (400, 800):
        calls.clear()
        plan_arena(_unrolled(steps), ALIGNMENT)
        counts.append((len(calls), max(calls)))
    (few, sizes), (many, more_sizes) = counts
    assert many <= 2.1 * few
    assert max(sizes, more_sizes) < 32  # the sizes among which the smallest is looked for


LIVES = [Lifetime("a", 64, 0, 2), Lifetime("b", 100, 1, 3), Lifetime("c", 64, 3, 4)]


def test_a_valid_plan_has_no_problems() -> None:
    assert verify_arena(plan_arena(LIVES, ALIGNMENT), LIVES, ALIGNMENT) == []


@pytest.mark.parametrize(
    ("offsets", "size", "message"),
    [
        ({"a": 0, "b": 0, "c": 128}, 192, "a and b share bytes"),
        ({"a": 0, "b": 32, "c": 192}, 256, "no multiple of 64"),
        ({"a": -64, "b": 64, "c": 192}, 256, "no multiple of 64"),
        ({"a": 0, "b": 64, "c": 192}, 250, "c ends at 256, the arena at 250"),
        ({"a": 0, "b": 64}, 256, "c has no place"),
        ({"a": 0, "b": 64, "c": 192, "d": 0}, 256, "d has a place and no lifetime"),
    ],
)
def test_planted_faults_are_found(offsets: dict[str, int], size: int, message: str) -> None:
    problems = verify_arena(ArenaPlan(offsets, size), LIVES, ALIGNMENT)
    assert any(message in problem for problem in problems), problems


def test_buffers_may_share_memory_one_after_the_other() -> None:
    assert verify_arena(ArenaPlan({"a": 0, "b": 64, "c": 0}, 192), LIVES, ALIGNMENT) == []
