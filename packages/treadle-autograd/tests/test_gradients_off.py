"""Graphs that begin with gradients off: the copy for calls with gradients on does what the graph does."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from treadle_autograd import aot, with_gradients_off


def teacher_and_student() -> fx.GraphModule:
    """t = sigmoid(x * w), without gradients; s = sin(x * w), with them; the loss, the teacher's result, and (s + 1) without gradients."""
    graph = fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    taught = graph.call_function(torch.sigmoid, (graph.call_function(torch.mul, (x, w)),))
    graph.call_function(torch._C._set_grad_enabled, (True,))
    said = graph.call_function(torch.sin, (graph.call_function(torch.mul, (x, w)),))
    loss = graph.call_method("sum", (graph.call_function(torch.sub, (said, taught)),))
    graph.call_function(torch._C._set_grad_enabled, (False,))
    graph.output((loss, taught, graph.call_function(torch.add, (said, 1))))
    return fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_copy_gives_what_the_graph_gives(compiled: bool):
    gm = teacher_and_student()
    copied = with_gradients_off(gm)
    x, w = torch.randn(4), torch.randn(4, requires_grad=True)
    run = aot(copied, [x, w], inference=False, forward=lambda gm, _: gm) if compiled else copied
    assert not compiled or run.why_eager is None
    with torch.no_grad():
        expected = gm(x, w)
    found = run(x, w)
    assert torch.is_grad_enabled()
    assert [t.requires_grad for t in found] == [t.requires_grad for t in expected] == [True, False, False]
    torch.testing.assert_close(list(found), list(expected))
    for create_graph in (False, True):
        grads = [
            torch.autograd.grad(r[0], w, create_graph=create_graph, retain_graph=True)[0] for r in (found, expected)
        ]
        torch.testing.assert_close(*grads)
    torch.testing.assert_close(*(torch.autograd.grad(g.square().sum(), w)[0] for g in grads))


def test_the_graph_itself_stays_as_it_is():
    gm = teacher_and_student()
    before = str(gm.graph)
    with_gradients_off(gm)
    assert str(gm.graph) == before
