"""Programs that nearly every call runs a second time are left to eager for a while."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from treadle_autograd import aot
from treadle_autograd.second_runs import SecondRuns


def outcomes(runs: SecondRuns, calls: int, second: int) -> int:
    """How many of these calls, each with so many second runs, begin in eager."""
    found = 0
    for _ in range(calls):
        if runs.begins_in_eager():
            found += 1
        else:
            for _ in range(second):
                runs.note()
    return found


def test_calls_without_second_runs_stay():
    assert outcomes(SecondRuns(), 100, 0) == 0


def test_a_second_run_now_and_then_changes_nothing():
    runs = SecondRuns()
    for _ in range(50):
        assert outcomes(runs, 1, 0) + outcomes(runs, 1, 1) == 0


def test_a_second_run_for_every_call_leaves_the_program():
    assert outcomes(SecondRuns(), 100, 1) == 96


def test_it_is_tried_again_ever_more_rarely():
    runs = SecondRuns()
    assert outcomes(runs, 4 + 256 + 4, 1) == 256
    assert outcomes(runs, 512, 1) == 512
    assert not runs.begins_in_eager()


def _program(change: bool = False) -> fx.GraphModule:
    graph = fx.Graph()
    x, state = graph.placeholder("x"), graph.placeholder("state")
    y = graph.call_function(torch.sin, (graph.call_function(torch.mul, (x, x)),))
    if change:
        graph.call_method("add_", (state, 1))
    graph.output((graph.call_function(torch.mul, (y, state)),))
    return fx.GraphModule(torch.nn.Module(), graph)


def _calls(module: fx.GraphModule, leaf: torch.Tensor) -> tuple[Any, list[int]]:
    """The compiled program, and a list that grows with each call of a compiled forward graph."""
    ran: list[int] = []

    def forward(graph: fx.GraphModule, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            ran.append(1)
            return graph(*args)

        return run

    return aot(module, [leaf, torch.ones(3)], inference=False, forward=forward, backward=lambda graph, _: graph), ran


def _jacobian(function: Any, leaf: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    (y,) = function(leaf, state)
    return torch.autograd.grad(y, leaf, torch.eye(3), is_grads_batched=True)[0]


def _hessian(function: Any, leaf: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    (y,) = function(leaf, state)
    (first,) = torch.autograd.grad(y.sum(), leaf, create_graph=True)
    return torch.autograd.grad(first, leaf, torch.eye(3), is_grads_batched=True)[0]


def test_jacobians_run_in_eager_from_the_fifth_call_on():
    leaf, module = torch.tensor([0.5, 0.7, 2.0], requires_grad=True), _program()
    function, ran = _calls(module, leaf)
    for _ in range(8):
        found = _jacobian(function, leaf, torch.ones(3))
        torch.testing.assert_close(found, _jacobian(module.forward, leaf, torch.ones(3)))
    assert len(ran) == 4


def test_hessians_run_the_program_of_the_gradients_a_second_time():
    leaf, module = torch.tensor([0.5, 0.7, 2.0], requires_grad=True), _program()
    function, ran = _calls(module, leaf)
    for _ in range(8):
        found = _hessian(function, leaf, torch.ones(3))
        torch.testing.assert_close(found, _hessian(module.forward, leaf, torch.ones(3)))
    assert len(ran) == 4


def test_a_program_that_changes_an_input_stays():
    leaf, module = torch.tensor([0.5, 0.7, 2.0], requires_grad=True), _program(change=True)
    function, ran = _calls(module, leaf)
    states = torch.ones(3), torch.ones(3)
    for _ in range(8):
        found = _jacobian(function, leaf, states[0])
        torch.testing.assert_close(found, _jacobian(module.forward, leaf, states[1]))
        assert torch.equal(*states)
    assert len(ran) == 8
