"""Decisions on a uniform random number that are the same for every draw: no break, and the state of the generator is eager's."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled

DECIDED = {
    "less": lambda r: r < 0.0,
    "less than an int": lambda r: r < 0,
    "less than one": lambda r: r < 1.0,
    "at most": lambda r: r <= -0.5,
    "at most one": lambda r: r <= 1,
    "greater": lambda r: r > 1.0,
    "greater than less than nothing": lambda r: r > -1,
    "at least": lambda r: r >= 0.0,
    "at least one": lambda r: r >= 1.0,
    "a function": lambda r: torch.lt(r, 0.0),
    "a method": lambda r: r.ge(1.5),
    "the number first": lambda r: 0.0 > r,
}
DRAWN = {
    "less": lambda r: r < 0.5,
    "at most zero": lambda r: r <= 0.0,
    "greater than zero": lambda r: r > 0.0,
    "not a number": lambda r: r < float("nan"),
    "scaled": lambda r: r * 2 < 1.0,
    "written to": lambda r: r.mul_(3) < 1.0,
    "written to afterwards": lambda r: (r < 1.0, r.mul_(3))[1] < 1.0,
}


def _run(decide):
    def run(x):
        for _ in range(3):
            if decide(torch.rand([])):
                continue
            x = torch.sin(x)
        return x

    return run


def _same(fast, run):
    for seed in range(6):
        results = []
        for call in (fast, run):
            torch.manual_seed(seed)
            results.append((call(torch.ones(2)), torch.get_rng_state()))
        assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("name", DECIDED)
def test_what_no_draw_changes_is_decided(name):
    fast, said = compiled(_run(DECIDED[name]), fullgraph=True)
    _same(fast, _run(DECIDED[name]))
    assert len(said.graphs) == 1


@pytest.mark.parametrize("name", DRAWN)
def test_what_depends_on_the_draw_breaks(name):
    fast, said = compiled(_run(DRAWN[name]))
    _same(fast, _run(DRAWN[name]))
    assert said.breaks


@pytest.mark.parametrize(
    "draw", [lambda: torch.randn([]), lambda: torch.rand([], dtype=torch.float16), lambda: torch.rand(1) + 1]
)
def test_other_draws_break(draw):
    def run(x):
        return torch.sin(x) if draw() < 1.0 else torch.cos(x)

    fast, said = compiled(run)
    _same(fast, run)
    assert said.breaks


def test_a_probability_that_changes():
    def run(x, p):
        return torch.sin(x) if torch.rand([]) < p else torch.cos(x)

    fast, _ = compiled(run)
    for p in (0.0, 0.0, 1.0, 0.5, 0.25, 0.75, 0.0, 1.0):
        torch.manual_seed(0)
        found = fast(torch.ones(2), p)
        torch.manual_seed(0)
        assert torch.equal(found, run(torch.ones(2), p))
