"""Loops that take too long to trace are left to Python."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled

from treadle_tracer.trace import patience


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(patience, "_STEPS", 2000)
    monkeypatch.setattr(patience, "_NODES", 50)
    patience._long.clear()


def summed(n):
    total = 0
    for i in range(n):
        total += i * i % 7
    return total


def in_the_frame(x, n):
    y = x + 1
    for i in range(n):
        n += i % 3
    return y * n


def in_a_call(x, n):
    y = torch.relu(x) * 2
    number = summed(n)
    return torch.sigmoid(y + number)


def in_many_calls(x, n):
    y = torch.relu(x)
    for i in range(n):
        y[0] = summed(i % 5)
    return y


def in_a_generator(x, n):
    return torch.relu(x) + sum(i % 7 for i in range(n))


def of_tensors(x, n):
    for _ in range(n):
        x = x * 1.01
    return x


def under_a_handler(x, n):
    try:
        y = torch.relu(x) + summed(n)
    finally:
        n = 0
    return y + n


PROGRAMS = [in_the_frame, in_a_call, in_many_calls, in_a_generator, of_tensors, under_a_handler]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("n", [20, 3000])
def test_programs(program, n):
    run, said = compiled(program)
    x = torch.tensor([-1.0, 2.0])
    for count in (n, n + 1, n):
        assert torch.equal(run(x.clone(), count), program(x.clone(), count))
    if n == 20:
        assert not said.breaks


def test_what_stands_around_a_long_call_is_compiled():
    run, said = compiled(in_a_call)
    for _ in range(2):
        run(torch.ones(2), 3000)
    assert [reason.code for reason in said.breaks] == ["long-trace"]
    assert len(said.graphs) == 2


def test_whoever_wants_one_graph_waits():
    run, said = compiled(in_a_call, fullgraph=True)
    assert torch.equal(run(torch.ones(2), 3000), in_a_call(torch.ones(2), 3000))
    assert len(said.graphs) == 1


def test_a_graph_that_grows_is_no_long_loop():
    def program(x, n):
        for _ in range(n):
            x = x + sum(range(3)) * len([i for i in range(60)])
        return x

    run, said = compiled(program)
    assert torch.equal(run(torch.ones(2), 40), program(torch.ones(2), 40))
    assert not said.breaks
