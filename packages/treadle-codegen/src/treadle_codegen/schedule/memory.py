"""Memory planning: every temporary gets a place in one arena; places are reused when lifetimes do not overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer of `size` bytes that is live from step `first` (written) to step `last` (last read), both included."""

    name: str
    size: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ArenaPlan:
    """`offsets` in bytes of each buffer, `size` of the arena in bytes."""

    offsets: dict[str, int]
    size: int


def plan_arena(lifetimes: Sequence[Lifetime], alignment: int) -> ArenaPlan:
    """Offsets, multiples of `alignment` bytes, such that no two buffers that are live at the same step overlap.

    Greedy by size (Pisarchyk & Lee 2020, "Efficient Memory Management for Deep Neural Net Inference", §5.2): larger
    buffers first, each into the smallest gap left by those it shares a step with.
    """
    placed: list[tuple[int, int, Lifetime]] = []
    offsets: dict[str, int] = {}
    total = 0
    for life in sorted(lifetimes, key=lambda b: (-b.size, b.first, b.name)):
        size = _aligned(life.size, alignment)
        neighbours = sorted((start, end) for start, end, other in placed if _overlap(life, other))
        at = _best_gap(neighbours, size)
        offsets[life.name] = at
        placed.append((at, at + size, life))
        total = max(total, at + size)
    return ArenaPlan(offsets, total)


def verify_arena(plan: ArenaPlan, lifetimes: Sequence[Lifetime], alignment: int) -> list[str]:
    """All violations of the memory plan's contract; empty for a valid plan.

    - Every buffer has an offset, and no other name has one.
    - Offsets are not negative and multiples of the alignment.
    - Every buffer ends inside the arena.
    - Two buffers that are live at the same step share no byte.
    """
    problems = [f"{name} has a place and no lifetime" for name in plan.offsets.keys() - {b.name for b in lifetimes}]
    placed = [(plan.offsets[b.name], b) for b in lifetimes if b.name in plan.offsets]
    problems += [f"{b.name} has no place" for b in lifetimes if b.name not in plan.offsets]
    for at, b in placed:
        if at < 0 or at % alignment:
            problems.append(f"{b.name} is at {at}, which is no multiple of {alignment}")
        if at + b.size > plan.size:
            problems.append(f"{b.name} ends at {at + b.size}, the arena at {plan.size}")
    for (start, a), (other, b) in combinations(placed, 2):
        if _overlap(a, b) and start < other + b.size and other < start + a.size:
            problems.append(f"{a.name} and {b.name} share bytes and are both live at step {max(a.first, b.first)}")
    return problems


def _aligned(size: int, alignment: int) -> int:
    return max(alignment, (size + alignment - 1) // alignment * alignment)


def _overlap(a: Lifetime, b: Lifetime) -> bool:
    return a.first <= b.last and b.first <= a.last


def _best_gap(neighbours: list[tuple[int, int]], size: int) -> int:
    """Start of the tightest gap of at least `size` between occupied (start, end) ranges, else after the last."""
    best: tuple[int, int] | None = None
    free_from = 0
    for start, end in neighbours:
        gap = start - free_from
        if gap >= size and (best is None or gap < best[0]):
            best = (gap, free_from)
        free_from = max(free_from, end)
    return free_from if best is None else best[1]
