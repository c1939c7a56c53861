"""Objects whose class has a `__del__` method: Python makes them, and frees them where the program says."""

from __future__ import annotations

import gc

import pytest
import torch
from compile_runs import compiled

from treadle_tracer import Unsupported

OPEN: list[str] = []


class Handle:
    def __init__(self, name="handle"):
        self.name = name
        OPEN.append(name)

    def __del__(self):
        OPEN.remove(self.name)


class Network(torch.nn.Module):
    def __del__(self):
        OPEN.append("network")


def stays_open(x):
    handle = Handle()
    y = (x * 2).relu()
    return y + len(OPEN), handle is None


def closed_halfway(x):
    handle = Handle()
    x = x * len(OPEN)
    del handle
    return x.relu() + len(OPEN)


def replaced(x):
    handle = Handle("one")
    handle = Handle("two")
    return x + len(OPEN), handle.name


def in_a_loop(x):
    for count in range(3):
        handle = Handle(str(count))
        x = x.relu() + len(OPEN)
    return x, handle.name


def made_by_another(x):
    def made():
        return Handle("inner")

    name = made().name
    return x + len(OPEN), name


def behind_a_break(x):
    handle = Handle()
    number = x.sum().item()
    return x.relu() + number + len(OPEN), handle is None


def a_module(x):
    network = Network()
    del network
    return x + len(OPEN)


@pytest.mark.parametrize(
    "program",
    [stays_open, closed_halfway, replaced, in_a_loop, made_by_another, behind_a_break, a_module],
    ids=lambda f: f.__name__,
)
def test_freed_where_python_frees_it(program):
    def outcome(function):
        OPEN.clear()
        found = [function(torch.ones(2)) for _ in range(3)]
        gc.collect()
        return str(found), list(OPEN)

    run, _ = compiled(program)
    assert outcome(run) == outcome(program)


def test_a_whole_graph_refuses_it():
    run, _ = compiled(stays_open, fullgraph=True)
    with pytest.raises(Unsupported, match="__del__"):
        run(torch.ones(2))
