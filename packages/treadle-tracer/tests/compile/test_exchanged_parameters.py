"""A parameter or buffer is a constant of the graph until others stand in its place; from then on it is an input."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled


@pytest.fixture(autouse=True)
def without_gradients():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def parameter(*sizes):
    return torch.nn.Parameter(torch.randn(sizes))


def test_parameters_of_one_shape_share_a_graph():
    def linear(w, x):
        return x @ w

    fast, said = compiled(linear)
    for _ in range(6):
        w, x = parameter(4, 4), torch.randn(2, 4)
        assert torch.equal(fast(w, x), linear(w, x))
    assert len(said.graphs) == 1


def test_sizes_of_exchanged_parameters_vary():
    def linear(w, x):
        return x @ w

    fast, said = compiled(linear)
    for n in (4, 5, 6, 7, 9):
        w, x = parameter(n, 3), torch.randn(2, n)
        assert torch.equal(fast(w, x), linear(w, x))
    assert len(said.graphs) <= 3


def test_a_buffer_that_is_replaced_on_every_call():
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x):
            self.total = self.total + x
            return self.total * 2

    fast, slow = Counter(), Counter()
    run, said = compiled(fast.forward)
    for _ in range(6):
        x = torch.randn(3)
        assert torch.equal(run(x), slow(x))
        assert torch.equal(fast.total, slow.total)
    assert len(said.graphs) <= 3


def test_a_parameter_of_a_module_that_is_replaced_once_is_a_constant_again():
    layer = torch.nn.Linear(3, 3)
    run, said = compiled(layer.forward)
    for _ in range(2):
        x = torch.randn(2, 3)
        assert torch.equal(run(x), layer(x))
        layer.weight = parameter(3, 3)
    assert [len(g.graph.find_nodes(op="get_attr")) for g in said.graphs] == [2, 2]


def test_a_parameter_passed_twice_is_written_once():
    """Traced with two parameters, called with one in both places: what is written to the first shows in the second."""

    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = parameter(3)

        def forward(self, p):
            p.add_(1)
            return self.weight * 2

    module = Scaled()
    run, _ = compiled(module.forward)
    for p in (parameter(3), parameter(3), module.weight, parameter(3)):
        got = run(p).clone()
        assert torch.equal(got, module.weight * 2)
