"""Asserts stand right behind what they need."""

from __future__ import annotations

import operator

import torch
from torch import fx

from treadle_autograd.asserts import hoist_asserts, is_assert

aten = torch.ops.aten


def test_hoisting_keeps_the_order_and_moves_arithmetic_along():
    graph = fx.Graph()
    t = graph.placeholder("t")
    first = graph.call_function(aten._local_scalar_dense.default, (t,))
    noise = graph.call_function(aten.relu.default, (t,))
    second = graph.call_function(aten._local_scalar_dense.default, (noise,))
    later = graph.call_function(aten.relu.default, (noise,))
    total = graph.call_function(operator.add, (first, second))
    both = graph.call_function(operator.le, (total, 4))
    graph.call_function(aten._assert_scalar.default, (both, "both"))
    one = graph.call_function(operator.ge, (first, 0))
    graph.call_function(aten._assert_scalar.default, (one, "one"))
    graph.output((later,))
    for node in (total, both, one):
        node.meta["val"] = 1
    hoist_asserts(graph)
    graph.lint()
    names = [n.args[1] if n.target is aten._assert_scalar.default else n.name for n in graph.nodes]
    assert names == [
        "t",
        first.name,
        one.name,
        "one",
        noise.name,
        second.name,
        total.name,
        both.name,
        "both",
        later.name,
        "output",
    ]


def test_a_graph_without_asserts_stays_as_it_is():
    graph = fx.Graph()
    x = graph.placeholder("x")
    size = graph.call_function(aten.sym_size.int, (x, 0))
    graph.output((graph.call_function(aten.relu.default, (x,)), size))
    before = [node.name for node in graph.nodes]
    hoist_asserts(graph)
    assert [node.name for node in graph.nodes] == before and not any(map(is_assert, graph.nodes))


def test_asserts_on_inputs_stand_behind_the_last_input():
    graph = fx.Graph()
    n = graph.placeholder("n")
    x = graph.placeholder("x")
    result = graph.call_function(aten.relu.default, (x,))
    condition = graph.call_function(operator.ge, (n, 1))
    condition.meta["val"] = True
    graph.call_function(aten._assert_scalar.default, (condition, "first"))
    graph.call_function(aten._assert_scalar.default, (condition, "second"))
    graph.output((result,))
    hoist_asserts(graph)
    graph.lint()
    names = [node.args[1] if is_assert(node) else node.name for node in graph.nodes]
    assert names == ["n", "x", condition.name, "first", "second", result.name, "output"]
