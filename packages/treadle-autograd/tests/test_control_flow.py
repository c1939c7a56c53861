"""Branches and loops over values of tensors through `aot`: see docs/contracts.md, section 3."""

from __future__ import annotations

import operator

import pytest
import torch
from aten_runner import run_aten
from torch import fx

from treadle_autograd import aot


class Choice:
    """A target as the tracer makes them: leaves[1] * lifted[0], or - leaves[1]."""

    __name__ = control_flow = "cond"

    def __call__(self, leaves, lifted):
        pred, x = leaves
        return [(x * lifted[0] if pred else -x).contiguous()]

    def results(self, leaves, lifted):
        return [leaves[1].new_empty(leaves[1].shape)]


def module():
    graph = fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    pred = graph.call_function(torch.gt, (graph.call_method("sum", (x,)), 0))
    made = graph.call_function(Choice(), ([pred, x], [w]))
    graph.output((graph.call_function(torch.sin, (graph.call_function(operator.getitem, (made, 0)),)),))
    return fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_branch_that_the_value_selects(sign):
    x, w = torch.full((3,), float(sign)), torch.randn(3)
    run = aot(module(), [x, w], forward=run_aten)
    assert run.why_eager is None
    torch.testing.assert_close(run(x, w)[0], (x * w if sign > 0 else -x).sin())


@pytest.mark.parametrize("sign", [1, -1])
def test_gradients_are_those_of_the_branch_that_ran(sign):
    x, w = torch.full((3,), float(sign)).requires_grad_(), torch.randn(3).requires_grad_()
    run = aot(module(), [x, w], inference=False, forward=run_aten)
    assert run.why_eager is None
    (found,) = run(x, w)
    (expected,) = module()(x, w)
    options = {"allow_unused": True, "materialize_grads": True}
    torch.testing.assert_close(
        torch.autograd.grad(found.sum(), [x, w], **options), torch.autograd.grad(expected.sum(), [x, w], **options)
    )
