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


def test_the_own_write_to_a_view_leaves_another_view_of_the_same_tensor_as_it_was():
    def program(a, b):
        a.mul_(2)
        return (b.sin(),)

    found = []
    for function in (program, None):
        x = torch.arange(6.0, dtype=torch.float64, requires_grad=True)
        whole = x.view(2, 3) * 1
        a, b = whole[0], whole[1]
        if function is None:
            function = aot(fx.symbolic_trace(program), [a, b], inference=False, forward=lambda gm, _: gm)
            assert function.why_eager is None
        (y,) = function(a, b)
        assert whole._version == 1
        (once,) = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
        found.append([once, *torch.autograd.grad(once.pow(2).sum(), x)])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_the_own_write_is_none_to_an_input_that_nothing_reads():
    def program(a, b, c):
        a.mul_(2)
        return (c.sin(),)

    x, whole = torch.arange(3.0, requires_grad=True), torch.ones(2, 3)
    run = aot(fx.symbolic_trace(program), [whole[0], whole[1], x], inference=False, forward=lambda gm, _: gm)
    (y,) = run(whole[0], whole[1], x)
    (once,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(once.sum(), x), (-x.sin(),))


def test_a_later_write_to_another_view_is_refused():
    def program(a, b):
        a.mul_(2)
        return (b.sin(),)

    x = torch.arange(6.0, requires_grad=True)
    whole = x.view(2, 3) * 1
    run = aot(fx.symbolic_trace(program), [whole[0], whole[1]], inference=False, forward=lambda gm, _: gm)
    (y,) = run(whole[0], whole[1])
    whole[0].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_read_before_the_own_write_is_refused_as_in_eager():
    def program(w, a):
        result = w * a
        a.add_(1)
        return (result,)

    w, a = torch.ones(3, requires_grad=True), torch.ones(3)
    run = aot(fx.symbolic_trace(program), [w, a], inference=False, forward=lambda gm, _: gm)
    (y,) = run(w, a)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
