"""Branches and loops over values of tensors through `aot`: see docs/contracts.md, section 3."""

from __future__ import annotations

import gc
import operator

import pytest
import torch
from aten_runner import run_aten
from torch import fx

from treadle_autograd import aot, control_flow


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


@pytest.mark.parametrize("sign", [1, -1])
def test_gradients_of_gradients(sign):
    x, w = torch.full((3,), float(sign)).requires_grad_(), torch.randn(3).requires_grad_()
    run = aot(module(), [x, w], inference=False, forward=run_aten)
    options = {"allow_unused": True, "materialize_grads": True}
    found = []
    for function in (run, module()):
        first = torch.autograd.grad(function(x, w)[0].sum(), [x, w], create_graph=True, **options)
        found.append(torch.autograd.grad(sum(g.pow(2).sum() for g in first), [x, w], **options))
    torch.testing.assert_close(*found)


def test_gradients_share_no_memory():
    class Sum(Choice):
        def __call__(self, leaves, lifted):
            return [leaves[1] + lifted[0]]

    graph = module().graph
    next(node for node in graph.nodes if isinstance(node.target, Choice)).target = Sum()
    gradients = []

    def compile_backward(gm, example_inputs):
        compiled = run_aten(gm, example_inputs)

        def run(*args):
            gradients.extend(compiled(*args))
            return gradients

        return run

    x, w = torch.ones(3).requires_grad_(), torch.ones(3).requires_grad_()
    gm = fx.GraphModule(torch.nn.Module(), graph)
    run = aot(gm, [x, w], inference=False, forward=run_aten, backward=compile_backward)
    run(x, w)[0].sum().backward()
    assert len({gradient.data_ptr() for gradient in gradients}) == 2


@pytest.mark.parametrize("inference", [True, False])
def test_bodies_live_as_long_as_the_callable_and_its_results(inference):
    gc.collect()
    before = len(control_flow._programs)
    x, w = torch.ones(3).requires_grad_(not inference), torch.randn(3)
    run = aot(module(), [x, w], inference=inference, forward=run_aten)
    gc.collect()
    (result,) = run(x, w)
    del run
    gc.collect()
    if not inference:
        result.sum().backward()
        torch.testing.assert_close(x.grad, w * w.cos())
    del result
    gc.collect()
    assert len(control_flow._programs) == before
