"""The forward graph under autograd."""

from __future__ import annotations

import torch
from aten_runner import run_aten
from torch import fx

from treadle_autograd import aot
from treadle_autograd.rerun import DifferentiableRun

aten = torch.ops.aten


def test_a_functional_copy_has_derivatives():
    """PyTorch has none for `aten.copy`, which an in-place copy becomes."""
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    graph.output((graph.call_function(aten.copy.default, (x, graph.call_function(aten.mul.Tensor, (y, y)))),))
    run = DifferentiableRun(fx.GraphModule(torch.nn.Module(), graph), {}, {})
    leaf = torch.tensor([2.0, 3.0], requires_grad=True)
    (found,) = run.run(torch.zeros(2), leaf, enable_io_processing=False)
    (first,) = torch.autograd.grad(found.sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), leaf)
    assert first.tolist() == [4.0, 6.0] and second.tolist() == [2.0, 2.0]


def test_custom_operators_keep_their_derivatives():
    """Their formulas call them with gradients off."""

    @torch.library.custom_op("treadle_rerun_test::cube", mutates_args=())
    def cube(x: torch.Tensor) -> torch.Tensor:
        return x * x * x

    cube.register_fake(torch.empty_like)
    cube.register_autograd(
        lambda ctx, gradient: gradient * 3 * ctx.saved_tensors[0] ** 2,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(
        (graph.call_function(torch.ops.treadle_rerun_test.cube.default, (graph.call_function(torch.sin, (x,)),)),)
    )
    module = fx.GraphModule(torch.nn.Module(), graph)
    leaf = torch.tensor([0.5, 0.7], requires_grad=True)
    run = aot(module, [leaf], inference=False, forward=run_aten)
    found = []
    for function in (run, module):
        (first,) = torch.autograd.grad(function(leaf)[0].sum(), leaf, create_graph=True)
        found.append(torch.autograd.grad(first.sum(), leaf))
    torch.testing.assert_close(*found)


def test_a_leaky_unit_with_random_slopes_has_derivatives():
    graph = fx.Graph()
    x = graph.placeholder("x")
    sloped = graph.call_function(torch.nn.functional.rrelu, (graph.call_function(torch.sin, (x,)),), {"training": True})
    graph.output((sloped,))
    module = fx.GraphModule(torch.nn.Module(), graph)
    leaf = torch.linspace(-3, 3, 50).requires_grad_()
    found = []
    for function in (aot(module, [leaf], inference=False, forward=run_aten), module):
        torch.manual_seed(0)
        (first,) = torch.autograd.grad(function(leaf)[0].sum(), leaf, create_graph=True)
        found.append((first.detach(), *torch.autograd.grad(first.sum(), leaf)))
    torch.testing.assert_close(*found)


def test_a_tensor_that_is_changed_with_gradients_off_keeps_its_history():
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    graph.output((graph.call_function(torch.nn.functional.cosine_similarity, (x, y)),))
    module = fx.GraphModule(torch.nn.Module(), graph)
    leaves = [torch.linspace(0.5, 3, 12).view(3, 4).requires_grad_(), torch.ones(3, 4).requires_grad_()]
    found = []
    for function in (aot(module, leaves, inference=False, forward=run_aten), module):
        first = torch.autograd.grad(function(*leaves)[0].sum(), leaves, create_graph=True)
        found.append(torch.autograd.grad(sum(g.pow(2).sum() for g in first), leaves))
    torch.testing.assert_close(*found)
