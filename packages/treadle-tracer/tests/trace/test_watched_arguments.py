"""Objects with a `__del__` that a frame holds by an iterator or by the `__exit__` of a `with`, as progress bars are held."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled, item

SAID: list[str] = []


class Bar:
    """It shows how far a loop is, and says when it ends."""

    def __init__(self, items=(), name="bar"):
        self.items, self.name, self.count = items, name, 0

    def __iter__(self):
        try:
            for item in self.items:
                yield item
                self.update()
        finally:
            self.close()

    def update(self):
        self.count += 1
        SAID.append(f"{self.name} {self.count}")

    def close(self):
        if self.name:
            SAID.append(f"{self.name} closed")
            self.name = ""

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self.close()

    def __del__(self):
        self.close()


def bar(items=()):
    return Bar(items, "made")


def counted(x):
    for count, row in enumerate(Bar(x)):
        x = x.sin() + row * count
    return x, len(SAID)


def counted_from_one(x):
    for count, row in enumerate(bar(x), 1):
        x = x.sin() + row * count
        if count == 2:
            break
    return x * 2, len(SAID)


def in_pairs(x):
    for first, second in zip(x[:-1], Bar(x[1:])):
        x = x.sin() + first * second
    return x, len(SAID)


def numbered_pairs(x):
    for count, (first, second) in enumerate(zip(x[:-1], Bar(x[1:]))):
        x = x.sin() + first * second * count
    return x, len(SAID)


def mapped(x):
    for row in map(torch.cos, Bar(x)):
        x = x.sin() + row
    return x, len(SAID)


def dropped_at_once(x):
    enumerate(Bar(x))
    return x.sin() + len(SAID)


def updated(x):
    y = x.cos()
    with Bar() as shown:
        for _ in range(3):
            y = y.sin() + 1
            shown.update()
    return y, len(SAID)


def updated_in_python(x):
    y = x.cos()
    with bar() as shown:
        for _ in range(3):
            y = y.sin() + y.sum().item()
            shown.update()
            y = y * y.max().item()
    return y, len(SAID)


class Clock(Bar):
    """Each update breaks the graph."""

    def update(self):
        self.count += int(item(torch.ones(1)))
        SAID.append(f"{self.name} {self.count}")


def updated_by_a_clock(x):
    y = x.cos()
    with Clock() as shown:
        for _ in range(4):
            y = y.sin() + 1
            shown.update()
    return y, len(SAID)


def only_entered(x):
    with Bar():
        x = x * x.sum().item()
        x = x.sin() * x.max().item()
    return x, len(SAID)


PROGRAMS = [
    counted,
    counted_from_one,
    in_pairs,
    numbered_pairs,
    mapped,
    dropped_at_once,
    updated,
    updated_in_python,
    updated_by_a_clock,
    only_entered,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_ends_where_python_ends_it(program):
    def outcome(function):
        SAID.clear()
        return [str(function(torch.ones(3, 3))) for _ in range(3)], list(SAID)

    run, said = compiled(program)
    assert outcome(run) == outcome(program)
    assert not said.skips and said.graphs
