"""Rules that users register: functions in the graph, functions in place of others, constant results."""

from __future__ import annotations

import math

import pytest
import torch
from compile_runs import compiled

from treadle_tracer import allow_in_graph, assume_constant_result, substitute_in_graph
from treadle_tracer.values.rules.registered import REGISTERED


@pytest.fixture(autouse=True)
def _nothing_stays():
    yield
    REGISTERED.clear()


def test_allow_in_graph():
    def opaque_sum(x):
        return x.sum() * 2

    allow_in_graph(opaque_sum)
    run, recorder = compiled(lambda x: opaque_sum(x) + 1, fullgraph=True)
    x = torch.ones(3)
    assert run(x).item() == 7
    assert opaque_sum in [node.target for node in recorder.graphs[0].graph.nodes]


def test_substitute_in_graph():
    @substitute_in_graph(math.dist)
    def dist(p, q):
        return sum((a - b) ** 2 for a, b in zip(p, q, strict=True)) ** 0.5

    run, _ = compiled(lambda x: math.dist([x[0], x[1]], [0, 0]), fullgraph=True)
    assert run(torch.tensor([3.0, 4.0])).item() == 5


def test_assume_constant_result():
    calls = []

    @assume_constant_result
    def setting(name):
        calls.append(name)
        return len(calls) * 10

    run, _ = compiled(lambda x: x + setting("a"), fullgraph=True)
    first = run(torch.zeros(1)).item()
    assert run(torch.zeros(1)).item() == first == len(calls) * 10


def test_assume_constant_result_of_numbers_that_change():
    ten_times = assume_constant_result(lambda n: n * 10)
    run, _ = compiled(lambda x, n: x + ten_times(n), fullgraph=True)
    for n in (1, 2, 3, 1):
        assert run(torch.zeros(1), n).item() == 10 * n


@pytest.mark.parametrize("register", [allow_in_graph, substitute_in_graph, assume_constant_result])
def test_what_is_not_callable_is_refused(register):
    with pytest.raises(TypeError, match="not callable"):
        register(3)
