"""Nodes with graphs of their own, through `aot`: see docs/contracts.md, section 3."""

from __future__ import annotations

import operator

import pytest
import torch
from aten_runner import run_aten
from torch import fx

from treadle_autograd import aot


class Body:
    def __init__(self, graph):
        self.graph = graph


class Vmap:
    """A target as the tracer makes them: `torch.func.vmap` of a graph."""

    __name__ = "vmap"

    def __init__(self, body, in_dims=0):
        self.calls = (Body(body),)
        self.in_dims = in_dims

    def __call__(self, leaves, lifted, run=lambda graph, values: graph(*values)):
        function = torch.func.vmap(lambda a: run(self.calls[0].graph, [a, *lifted])[0], self.in_dims)
        return [function(*leaves)]


def module(build):
    graph = fx.Graph()
    graph.output((build(graph, graph.placeholder("x"), graph.placeholder("w")),))
    return fx.GraphModule(torch.nn.Module(), graph)


def mapped(build):
    body = Vmap(module(build))

    def call(graph, x, w):
        made = graph.call_function(body, ([x], [w]))
        return graph.call_function(operator.getitem, (made, 0))

    return module(call)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_the_operators_of_a_transform_stand_in_the_graph(requires_grad):
    gm = mapped(lambda graph, x, w: graph.call_function(torch.sin, (graph.call_function(torch.matmul, (x, w)),)))
    x, w = torch.randn(3, 4, requires_grad=requires_grad), torch.randn(4, 4)
    run = aot(gm, [x, w], inference=not requires_grad, forward=run_aten)
    assert run.why_eager is None
    if not requires_grad:
        assert {node.target for node in run.aten_graph.graph.nodes} >= {torch.ops.aten.mm.default}
    (found,) = run(x, w)
    torch.testing.assert_close(found, (x @ w).sin())
    if requires_grad:
        torch.testing.assert_close(torch.autograd.grad(found.sum(), x), torch.autograd.grad((x @ w).sin().sum(), x))


def test_in_place_calls_in_a_body():
    def build(graph, x, w):
        made = graph.call_method("clone", (x,))
        graph.call_method("add_", (made, w))
        return made

    x, w = torch.randn(3, 4), torch.randn(4)
    run = aot(mapped(build), [x, w], forward=run_aten)
    assert run.why_eager is None
    torch.testing.assert_close(run(x, w)[0], x + w)


def test_what_has_no_functional_form_in_a_body():
    def build(graph, x, w):
        made = graph.call_method("expand", (w, 4, 4))
        graph.call_method("fill_", (made, 7))
        return graph.call_function(torch.add, (x, made))

    run = aot(mapped(build), [torch.randn(3, 4), torch.randn(4)], forward=run_aten)
    assert run.why_eager is not None
