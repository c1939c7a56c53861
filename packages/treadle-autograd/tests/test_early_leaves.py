"""Inputs that begin to require gradients before anything else runs are differentiated in the compiled graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from aten_runner import run_aten
from torch import fx

from treadle_autograd import aot
from treadle_autograd.early_leaves import early_leaves, without_first_calls


def energy(*, first: bool = True) -> fx.GraphModule:
    """x.requires_grad_(); e = (x * w).sin().sum(); e, d e / d x"""
    graph = fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    before = None if first else graph.call_method("exp", (x,))
    marked = graph.call_method("requires_grad_", (x, True))
    value = graph.call_method("sum", (graph.call_method("sin", (graph.call_function(torch.mul, (marked, w)),)),))
    gradients = graph.call_function(torch.autograd.grad, ((value,), (x,)), {"create_graph": True})
    slope = graph.call_function(lambda items: items[0], (gradients,))
    graph.output((value, slope, *([] if before is None else [before])))
    return fx.GraphModule(torch.nn.Module(), graph)


def tensors() -> list[torch.Tensor]:
    return [torch.linspace(0, 1, 5), torch.linspace(1, 2, 5).requires_grad_()]


def test_the_gradient_is_compiled() -> None:
    gm = energy()
    run = aot(gm, tensors(), inference=False, forward=run_aten)
    assert run.why_eager is None
    found = []
    for function in (gm, run):
        x, w = tensors()
        value, slope = function(x, w)
        (value + slope.square().sum()).backward()
        found.append([value, slope, x.grad, w.grad, torch.tensor(x.requires_grad)])
    torch.testing.assert_close(found[1], found[0])


def test_what_runs_before_is_no_part_of_the_history() -> None:
    gm = energy(first=False)
    assert early_leaves(gm, tensors()) == []
    run = aot(gm, tensors(), inference=False, forward=run_aten)
    x, w = tensors()
    *_, before = run(x, w)
    assert not before.requires_grad


def test_the_first_calls_are_left_out() -> None:
    gm = energy()
    assert early_leaves(gm, tensors()) == [0]
    assert not without_first_calls(gm, [0]).graph.find_nodes(op="call_method", target="requires_grad_")


@pytest.mark.parametrize("case", ["requires gradients", "a view", "twice", "an int"])
def test_inputs_that_are_left_to_the_graph(case: str) -> None:
    x, w = tensors()
    given: dict[str, list[Any]] = {
        "requires gradients": [w, w.detach()],
        "a view": [x.view(5), w],
        "twice": [x, x],
        "an int": [3, w],
    }
    assert early_leaves(energy(), given[case]) == []
