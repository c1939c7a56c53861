"""Removes the steps, statements and definitions that a failure does not need (delta debugging, Zeller and Hildebrandt 2002, one by one)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from soundness.run import Case
from soundness.world import World

T = TypeVar("T")


def minimise(case: Case, fails: Callable[[Case], bool]) -> Case:
    """The smallest case found that still fails; `case` itself must."""
    smaller = _pass(case, fails)
    return case if smaller == case else minimise(smaller, fails)


def _pass(case: Case, fails: Callable[[Case], bool]) -> Case:
    steps = _shrink(case.steps, lambda some: fails(Case(case.world, some)))
    chunks = case.world.chunks
    lines = _shrink(case.world.lines, lambda some: fails(Case(World(chunks, some), steps)))
    chunks = _shrink(chunks, lambda some: fails(Case(World(some, lines), steps)))
    return Case(World(chunks, lines), steps)


def _shrink(items: tuple[T, ...], fails: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    """Leave out runs of items, long ones first, as long as it still fails."""
    length = max(1, len(items) // 2)
    while length:
        start = 0
        while start < len(items):
            without = items[:start] + items[start + length :]
            if fails(without):
                items = without
            else:
                start += length
        length //= 2
    return items
