"""What may raise stands in front of updates; random operators keep their order."""

from __future__ import annotations

import operator

import torch
from torch import fx

from treadle_autograd.early_checks import move_checks_forward

aten = torch.ops.aten


def names(graph: fx.Graph) -> list[str]:
    graph.lint()
    return [node.name for node in graph.nodes]


def checked(graph: fx.Graph, number: fx.Node) -> fx.Node:
    return graph.call_function(aten._assert_scalar.default, (graph.call_function(operator.ge, (number, 0)), "message"))


def test_numbers_and_checks_come_first_and_kernels_of_one_level_together():
    graph = fx.Graph()
    p, s, t = (graph.placeholder(name) for name in "pst")
    update = graph.call_function(aten.neg.default, (p,), name="update")
    first = graph.call_function(aten.add.Tensor, (s, 1), name="first")
    a = graph.call_function(aten._local_scalar_dense.default, (first,), name="a")
    checked(graph, a)
    second = graph.call_function(aten.add.Tensor, (t, 1), name="second")
    b = graph.call_function(aten._local_scalar_dense.default, (second,), name="b")
    checked(graph, b)
    graph.output((update, first, second))
    move_checks_forward(graph)
    assert names(graph) == ["p", "s", "t", "first", "second", "a", "ge", "_assert_scalar_default", "b", "ge_1",
                            "_assert_scalar_default_1", "update", "output"]  # fmt: skip


def test_random_operators_keep_their_order():
    graph = fx.Graph()
    p = graph.placeholder("p")
    graph.call_function(aten.rand_like.default, (p,), name="noise")
    plain = graph.call_function(aten.neg.default, (p,), name="plain")
    draw = graph.call_function(aten.rand_like.default, (p,), name="draw")
    checked(graph, graph.call_function(aten._local_scalar_dense.default, (draw,), name="number"))
    later = graph.call_function(aten.rand_like.default, (p,), name="later")
    graph.output((plain, later))
    move_checks_forward(graph)
    assert names(graph) == ["p", "noise", "draw", "number", "ge", "_assert_scalar_default", "plain", "later", "output"]


def test_a_graph_that_cannot_raise_stays_as_it_is():
    graph = fx.Graph()
    p = graph.placeholder("p")
    graph.output((graph.call_function(aten.neg.default, (p,)), graph.call_function(aten.exp.default, (p,))))
    before = [node.name for node in graph.nodes]
    move_checks_forward(graph)
    assert names(graph) == before
