"""Random numbers that backward draws again are those of forward, and the default generator is where eager leaves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from joint_graphs import joint_of, leaf
from torch import fx
from torch.nn import functional as F

from treadle_autograd import aot, with_budget
from treadle_autograd.node_sizes import size_in_bytes
from treadle_autograd.partition import classify, report, split
from treadle_shapes.torch import GENERATOR_STATE_BYTES

SHAPE = (100, 80)


def dropouts(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for p in (0.1, 0.5, 0.9):
        x = F.dropout(torch.tanh(x @ w), p, True)
    return x.square().sum()


def feature_dropout(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (F.dropout2d((x @ w).view(1, 100, 80, 1).expand(60, 100, 80, 1), 0.5, True) * x.sum()).sin().sum()


def noise(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = x @ w
    return (h * torch.rand_like(h) + torch.randn_like(h) * h.exp() + torch.randint_like(h, 5) * h).sum()


def bernoulli_of_probabilities(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = torch.sigmoid(x @ w)
    return (torch.bernoulli(h.detach()) * h).sum() + F.rrelu(h - 0.5, training=True).sum()


def whole_call(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (torch.native_dropout(x @ w, 0.3, True)[0] ** 3).sum()


PROGRAMS = [dropouts, feature_dropout, noise, bernoulli_of_probabilities, whole_call]


def run(function: Callable[..., Any]) -> list[torch.Tensor]:
    """The loss, gradients, and what the generator draws after forward and after backward."""
    x, w = torch.linspace(-1, 1, 8000).view(SHAPE), torch.linspace(-0.3, 0.3, 6400).view(80, 80).requires_grad_()
    torch.manual_seed(7)
    loss = function(x, w)
    loss = loss[0] if isinstance(loss, (tuple, list)) else loss
    after_forward = torch.get_rng_state()
    loss.backward()
    return [loss.detach(), w.grad, after_forward, torch.get_rng_state()]  # type: ignore[list-item]


def nodes_called(graphs: list[fx.GraphModule]) -> str:
    return " ".join(str(node.target) for graph in graphs for node in graph.graph.nodes)


@pytest.mark.parametrize("memory_budget", [0.0, 0.3])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_memory_budget_draws_again(program: Callable[..., torch.Tensor], memory_budget: float) -> None:
    graphs: list[fx.GraphModule] = []

    def keep(graph: fx.GraphModule, examples: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = aot(
        fx.symbolic_trace(program),
        [torch.randn(SHAPE), leaf(80, 80)],
        inference=False,
        forward=keep,
        partition=with_budget(memory_budget),
    )
    for mine, eager in zip(run(compiled), run(program), strict=True):
        assert torch.equal(mine, eager)
    if memory_budget == 0:
        assert "treadle.generator_state" in nodes_called(graphs[:1])
        assert "treadle.replay_" in nodes_called(graphs[1:]) and "treadle.replay_" not in nodes_called(graphs[:1])


def test_a_state_is_saved_in_place_of_a_mask() -> None:
    classes = classify(joint_of(dropouts, torch.randn(SHAPE), leaf(80, 80)))
    saved = with_budget(0)(classes)
    assert sum(size_in_bytes(node) for node in saved if node.op != "placeholder") == 3 * GENERATOR_STATE_BYTES["cpu"]
    again = report(split(classes, saved)).recomputed
    assert [value.why for value in again if value.operator == "aten.bernoulli.p"] == [
        "random numbers, drawn again from the generator's state"
    ] * 3


def test_a_mask_that_is_smaller_than_the_state_is_saved() -> None:
    def small(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.dropout(torch.exp(x @ w), 0.5, True).sum()

    joint = joint_of(small, torch.randn(50, 50), leaf(50, 50))
    assert not joint.states


def test_a_checkpointed_part_draws_again() -> None:
    gm = fx.symbolic_trace(dropouts)
    for node in gm.graph.nodes:
        node.meta["checkpoint"] = 0
    x, w = torch.randn(SHAPE), leaf(80, 80)
    compiled: Any = aot(gm, [x, w], inference=False, forward=lambda graph, examples: graph.forward)
    saved = compiled.partition_report().saved
    assert [value.operator for value in saved] == ["input", "input"] + ["treadle.generator_state.default"] * 3
    for mine, eager in zip(run(compiled), run(dropouts), strict=True):
        assert torch.equal(mine, eager)
