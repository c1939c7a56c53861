"""Generators in a trace: what is guarded, which calls of the graph stand for what, and what breaks."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled


def targets(recorder) -> list[str]:
    return [str(node.target) for gm in recorder.graphs for node in gm.graph.nodes if node.op == "call_function"]


def test_a_draw_is_a_function_of_the_state():
    run, recorder = compiled(lambda x, g: x + torch.rand(3, generator=g), fullgraph=True)
    g, h = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    assert torch.equal(run(torch.zeros(3), g), torch.rand(3, generator=h))
    assert torch.equal(g.get_state(), h.get_state())
    assert "treadle.draw_rand.generator" in targets(recorder)


def test_a_generator_that_nothing_draws_from_keeps_its_state_object():
    run, recorder = compiled(lambda x, g: x + (g.device.type == "cpu"), fullgraph=True)
    g = torch.Generator()
    before = g.get_state()
    run(torch.zeros(3), g)
    assert torch.equal(g.get_state(), before) and not any("treadle" in name for name in targets(recorder))


def test_seed_of_an_outside_generator_is_guarded():
    def function(x, g):
        return x + g.initial_seed()

    run, recorder = compiled(function, fullgraph=True)
    for seed in (1, 1, 5, -3):
        g = torch.Generator().manual_seed(seed)
        assert torch.equal(run(torch.zeros(3), g), function(torch.zeros(3), g))
    assert len(recorder.graphs) == 3


def test_seed_behind_writes():
    def function(x, g):
        first = g.initial_seed()
        torch.rand(2, generator=g)
        second = g.initial_seed()
        g.manual_seed(-9)
        return x, first, second, g.initial_seed()

    run, _ = compiled(function, fullgraph=True)
    assert run(torch.zeros(3), torch.Generator().manual_seed(4))[1:] == (4, 4, 2**64 - 9)


def unknown_seed(x, g):
    g.set_state(torch.Generator().manual_seed(8).get_state())
    return x + g.initial_seed()


def default_seed_behind_a_state(x, g):
    torch.set_rng_state(torch.get_rng_state())
    return x + torch.initial_seed()


def nondeterministic_seed(x, g):
    return x + (g.seed() > 0)


def wrong_state(x, g):
    try:
        g.set_state(torch.zeros(7, dtype=torch.uint8))
    except RuntimeError:
        return x + 1


def invalid_state(x, g):
    y = x + torch.rand(3, generator=g)
    try:
        g.set_state(torch.zeros(5056, dtype=torch.uint8) + 3)
    except RuntimeError:
        return y + torch.rand(3, generator=g)
    return x


def another_device(x, g):
    try:
        return torch.rand(3, device="meta", generator=g).shape, x + 1
    except RuntimeError:
        return x + 2


def output_given(x, g):
    out = torch.empty(3)
    return torch.randn(3, generator=g, out=out) + x


def leaf_made(x, g):
    return torch.randn(3, generator=g, requires_grad=True), x + 1


def graphsafe(x, g):
    return torch.rand(3, generator=g.clone_state()) + x


@pytest.mark.parametrize(
    "function",
    [
        *(unknown_seed, default_seed_behind_a_state, nondeterministic_seed, wrong_state, invalid_state),
        *(another_device, output_given, leaf_made, graphsafe),
    ],
    ids=lambda function: function.__name__,
)
def test_what_breaks_or_is_rare_is_as_in_eager(function):
    run, _ = compiled(function)
    for seed in (1, 2):
        torch.manual_seed(seed)
        g, h = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
        expected = function(torch.zeros(3), g)
        torch.manual_seed(seed)
        assert str(run(torch.zeros(3), h)) == str(expected)
        assert function is nondeterministic_seed or torch.equal(g.get_state(), h.get_state())


def test_a_path_that_is_not_taken_draws_nothing():
    def function(x, g):
        if x.sum() > 0:
            return x + torch.rand(3, generator=g)
        return x - torch.rand(3, generator=g) - torch.rand(3, generator=g)

    run, _ = compiled(function)
    g, h = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    for sign in (1, -1, 1, -1):
        x = torch.full((3,), float(sign))
        assert torch.equal(run(x, g), function(x, h)) and torch.equal(g.get_state(), h.get_state())


def test_generators_in_loops_over_sizes():
    def function(x, g):
        y = x if x.shape[0] > 4 else x + torch.rand(x.shape, generator=g)
        return y * 2

    run, _ = compiled(function, dynamic=True)
    g, h = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    for size in (3, 4, 5, 6, 2):
        x = torch.ones(size)
        assert torch.equal(run(x, g), function(x, h)) and torch.equal(g.get_state(), h.get_state())
