"""Graphs that call `torch.autograd.grad` themselves, and tensors that begin to require gradients, through `aot`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from aten_runner import run_aten
from torch import fx

from treadle_autograd import aot


def traced(function: Callable[..., Any], n_inputs: int) -> fx.GraphModule:
    """The function of graph nodes as a graph, which `function(graph, *placeholders)` writes."""
    graph = fx.Graph()
    graph.output(tuple(function(graph, *[graph.placeholder(f"x{k}") for k in range(n_inputs)])))
    return fx.GraphModule(torch.nn.Module(), graph)


def gradients(graph: fx.Graph, outputs: Sequence[Any], inputs: Sequence[Any], **options: Any) -> list[fx.Node]:
    found = graph.call_function(torch.autograd.grad, (tuple(outputs), tuple(inputs)), options)
    return [graph.call_function(lambda pair, k: pair[k], (found, k)) for k in range(len(inputs))]


def getitems(gm: fx.GraphModule) -> fx.GraphModule:
    import operator

    for node in gm.graph.nodes:
        if node.op == "call_function" and getattr(node.target, "__name__", "") == "<lambda>":
            node.target = operator.getitem
    gm.recompile()
    return gm


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).requires_grad_()


def test_gradients_are_operators_of_the_graph():
    def build(graph, x, w):
        loss = graph.call_method("sum", (graph.call_function(torch.tanh, (graph.call_function(torch.mul, (x, w)),)),))
        return [graph.call_method("detach", (loss,)), *gradients(graph, [loss], [w])]

    x, w = torch.randn(4), leaf(4)
    gm = getitems(traced(build, 2))
    run = aot(gm, [x, w], forward=run_aten)
    assert run.why_eager is None
    with torch.enable_grad():
        torch.testing.assert_close(list(run(x, w)), list(gm(x, w)))
    calls = [node for node in run.aten_graph.graph.nodes if node.op == "call_function"]
    assert calls and all(node.target is not torch.autograd.grad for node in calls)


def test_gradients_of_gradients():
    def build(graph, x):
        loss = graph.call_method("sum", (graph.call_function(torch.pow, (x, 3)),))
        (first,) = gradients(graph, [loss], [x], create_graph=True)
        return gradients(graph, [graph.call_method("sum", (first,))], [x])

    x = leaf(4)
    run = aot(getitems(traced(build, 1)), [x], forward=run_aten)
    torch.testing.assert_close(run(x)[0], 6 * x.detach())
    assert run.why_eager is None


def test_a_leaf_that_is_updated_with_gradients_off():
    def build(graph, w):
        loss = graph.call_method("sum", (graph.call_function(torch.mul, (w, w)),))
        (gradient,) = gradients(graph, [loss], [w])
        graph.call_function(torch._C._set_grad_enabled, (False,))
        graph.call_method("sub_", (w, gradient))
        graph.call_function(torch._C._set_grad_enabled, (True,))
        return [gradient]

    w = leaf(3)
    before = w.detach().clone()
    run = aot(getitems(traced(build, 1)), [w], forward=run_aten)
    assert run.why_eager is None
    run(w)
    torch.testing.assert_close(w.detach(), -before)
    assert torch.is_grad_enabled()


def test_an_output_with_a_history_refuses_inference():
    def build(graph, w):
        loss = graph.call_method("sum", (graph.call_function(torch.mul, (w, w)),))
        return [loss, *gradients(graph, [loss], [w], retain_graph=True)]

    w = leaf(3)
    run = aot(getitems(traced(build, 1)), [w], forward=run_aten)
    assert run.why_eager == "an output requires gradients, and the graph is compiled for inference"
    assert run(w)[0].requires_grad


def test_an_input_that_begins_to_require_gradients():
    def build(graph, x):
        graph.call_method("requires_grad_", (x,))
        return gradients(graph, [graph.call_method("sum", (graph.call_function(torch.pow, (x, 2)),))], [x])

    gm = getitems(traced(build, 1))
    run = aot(gm, [torch.ones(3)], forward=run_aten)
    x = torch.ones(3)
    torch.testing.assert_close(run(x)[0], torch.full((3,), 2.0))
    assert x.requires_grad and run.why_eager is None
    assert run.contract.requires_grad == ((0, True),)


def test_a_leaf_made_inside_refuses():
    gm = traced(lambda graph, x: [graph.call_method("requires_grad_", (graph.call_method("clone", (x,)),))], 1)
    for inference in (True, False):
        run = aot(gm, [torch.ones(3)], inference=inference, forward=run_aten)
        assert run.why_eager is not None
        (made,) = run(torch.ones(3))
        assert made.requires_grad and made.is_leaf


def test_a_view_made_with_gradients_off_refuses():
    def build(graph, w):
        graph.call_function(torch._C._set_grad_enabled, (False,))
        view = graph.call_method("view", (w, -1))
        graph.call_function(torch._C._set_grad_enabled, (True,))
        return [view]

    w = leaf(2, 2)
    run = aot(traced(build, 1), [w], forward=run_aten)
    assert run.why_eager is not None
    (view,) = run(w)
    assert view._base is w and view.grad_fn is None
