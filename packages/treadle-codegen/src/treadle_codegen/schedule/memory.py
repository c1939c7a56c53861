"""Memory planning: every temporary gets a place in one arena, places are reused when lifetimes do not overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64  # bytes: a cache line, and the widest vector


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


def plan_arena(lifetimes: Sequence[Lifetime]) -> ArenaPlan:
    """Offsets such that no two buffers that are live at the same step overlap.

    Greedy by size (Pisarchyk & Lee 2020, "Efficient Memory Management for Deep Neural Net Inference", §5.2): larger
    buffers first, each into the smallest gap left by those it shares a step with.
    """
    placed: list[tuple[int, int, Lifetime]] = []
    offsets: dict[str, int] = {}
    total = 0
    for life in sorted(lifetimes, key=lambda b: (-b.size, b.first, b.name)):
        size = _aligned(life.size)
        neighbours = sorted((start, end) for start, end, other in placed if _overlap(life, other))
        at = _best_gap(neighbours, size)
        offsets[life.name] = at
        placed.append((at, at + size, life))
        total = max(total, at + size)
    return ArenaPlan(offsets, total)


def _aligned(size: int) -> int:
    return max(ALIGNMENT, (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT)


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
