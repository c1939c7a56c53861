"""Compiled training: what is saved between the forward and the backward graph."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import fx

from treadle_autograd import aot
from treadle_autograd.partition import min_cut, save_everything


@pytest.mark.parametrize("partition", [min_cut, save_everything])
def test_an_output_written_in_place_may_be_saved(partition):
    graph = fx.Graph()
    x = graph.placeholder("x")
    result = graph.call_function(torch.relu_, (graph.call_function(torch.add, (x, 1)),))
    graph.output((result,))
    gm = fx.GraphModule(torch.nn.Module(), graph)
    given, expected = (torch.tensor([-2.0, 3.0], requires_grad=True) for _ in range(2))
    run = aot(gm, [given], inference=False, forward=lambda gm, inputs: gm, partition=partition)
    for leaf, function in ((given, run), (expected, gm)):
        (output,) = function(leaf)
        assert output._version == 1
        output.sum().backward()
    assert given.grad is not None and given.grad.equal(expected.grad)


@pytest.mark.parametrize("partition", [min_cut, save_everything])
def test_outputs_that_are_saved_go_without_a_backward_pass(partition):
    def program(x, w):
        hidden = x @ w
        return hidden, torch.tanh(hidden)

    x, w = torch.randn(3, 3), torch.randn(3, 3, requires_grad=True)
    run = aot(fx.symbolic_trace(program), [x, w], inference=False, forward=lambda gm, _: gm, partition=partition)
    for _ in range(2):
        outputs = [weakref.ref(output) for output in run(x, w)]
        assert [reference() for reference in outputs] == [None, None]


def _product(compiled_graphs: list[fx.GraphModule]) -> tuple[fx.GraphModule, object, list[torch.Tensor]]:
    graph = fx.Graph()
    inputs = [graph.placeholder(name) for name in ("x", "w", "v")]
    product = graph.call_function(torch.matmul, (graph.call_function(torch.matmul, tuple(inputs[:2])), inputs[2]))
    graph.output((graph.call_function(torch.tanh, (product,)),))
    gm = fx.GraphModule(torch.nn.Module(), graph)

    def note(gm: fx.GraphModule, inputs: object) -> object:
        compiled_graphs.append(gm)
        return gm.forward

    leaves = [torch.randn(3, 3, requires_grad=True) for _ in range(3)]
    return gm, aot(gm, leaves, inference=False, forward=note), leaves


def test_gradients_that_nobody_asks_for_are_not_computed():
    graphs: list[fx.GraphModule] = []
    gm, run, (x, w, v) = _product(graphs)
    for asked in ([x], [w, v], [x, w, v]):
        (found,) = run(x, w, v)
        (expected,) = gm(x, w, v)
        mine, theirs = (torch.autograd.grad(out.sum(), asked) for out in (found, expected))
        torch.testing.assert_close(mine, theirs)
    run(x * 1, w, v)[0].sum().backward(inputs=[v])
    assert w.grad is None and x.grad is None and v.grad is not None
    products = [sum(n.target is torch.ops.aten.mm.default for n in g.graph.nodes) for g in graphs[1:]]
    assert products == [2, 3, 4, 1]


def test_few_sets_of_gradients_get_graphs_of_their_own(monkeypatch):
    from treadle_autograd import training

    monkeypatch.setattr(training, "_MOST_SETS", 2)
    graphs: list[fx.GraphModule] = []
    gm, run, leaves = _product(graphs)
    for leaf in leaves * 2:
        found, expected = (torch.autograd.grad(f(*leaves)[0].sum(), leaf) for f in (run, gm))
        torch.testing.assert_close(found, expected)
    assert len(graphs) == 1 + 3  # forward; x; w; all of them


def test_hooks_of_inputs_without_a_gradient_are_not_called():
    def program(x, w, scale):
        return torch.tanh(x @ w) * scale.detach()

    x, w, scale = (torch.randn(3, 3, requires_grad=True) for _ in range(3))
    run = aot(fx.symbolic_trace(program), [x, w, scale], inference=False, forward=lambda gm, _: gm)
    called = []
    for function in (program, lambda *args: run(*args)[0]):
        calls: list[object] = []
        handles = [
            leaf.register_hook(lambda grad, k=k, calls=calls: calls.append(k)) for k, leaf in enumerate([x, w, scale])
        ]
        function(x, w, scale).sum().backward()
        called.append(sorted(calls))
        for handle in handles:
            handle.remove()
    assert called == [[0, 1], [0, 1]]
    assert scale.grad is None


def test_outputs_without_any_gradient_have_a_history():
    class Constant(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return None

    graph = fx.Graph()
    graph.output((graph.call_function(lambda x: Constant.apply(x), (graph.placeholder("x"),)),))
    x = torch.randn(3, requires_grad=True)
    run = aot(fx.GraphModule(torch.nn.Module(), graph), [x], inference=False, forward=lambda gm, _: gm)
    assert run.why_eager is None
    (out,) = run(x)
    assert out.requires_grad and out.grad_fn is not None
    out.sum().backward()
    assert x.grad is None
