"""Memory planning: every temporary gets a place in one arena; places are reused when lifetimes do not overlap."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

# Placing buffers by size takes time that grows with the square of their number: 2,000 take about 0.5 s.
_MOST_BY_SIZE = 512


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
    buffers first, each into the smallest gap left by those it shares a step with. Where there are many buffers, as in an unrolled
    loop, they are placed in the order of their first steps, each into the smallest gap that is free by then.
    """
    if len(lifetimes) > _MOST_BY_SIZE:
        return _by_first_step(lifetimes, alignment)
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


def _by_first_step(lifetimes: Sequence[Lifetime], alignment: int) -> ArenaPlan:
    offsets: dict[str, int] = {}
    free = _FreeMemory()
    live: list[tuple[int, int, int]] = []  # (last step, start, end)
    for life in sorted(lifetimes, key=lambda b: (b.first, -b.size, b.name)):
        while live and live[0][0] < life.first:
            free.give_back(*heapq.heappop(live)[1:])
        size = _aligned(life.size, alignment)
        start = offsets[life.name] = free.take(size)
        heapq.heappush(live, (life.last, start, start + size))
    return ArenaPlan(offsets, free.end)


class _FreeMemory:
    """The gaps of an arena that grows where none is large enough. `end`: the size of the arena."""

    def __init__(self) -> None:
        self.end = 0
        self._ends: dict[int, int] = {}  # start of each gap -> its end
        self._starts: dict[int, int] = {}  # end of each gap -> its start
        self._by_size: dict[int, dict[int, None]] = {}  # size -> starts of the gaps of this size

    def take(self, size: int) -> int:
        """The start of so much memory, in the smallest gap that has it."""
        fitting = size if size in self._by_size else min((s for s in self._by_size if s > size), default=None)
        if fitting is not None:
            start = next(iter(self._by_size[fitting]))
            end = self._remove(start)
            if start + size < end:
                self._add(start + size, end)
            return start
        last = self._starts.get(self.end, self.end)  # a gap at the end of the arena grows
        if last < self.end:
            self._remove(last)
        self.end = last + size
        return last

    def give_back(self, start: int, end: int) -> None:
        if start in self._starts:
            start = self._starts[start]
            self._remove(start)
        if end in self._ends:
            end = self._remove(end)
        self._add(start, end)

    def _add(self, start: int, end: int) -> None:
        self._ends[start], self._starts[end] = end, start
        self._by_size.setdefault(end - start, {})[start] = None

    def _remove(self, start: int) -> int:
        """The end of the gap that is no more."""
        end = self._ends.pop(start)
        del self._starts[end]
        of_size = self._by_size[end - start]
        del of_size[start]
        if not of_size:
            del self._by_size[end - start]
        return end


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
