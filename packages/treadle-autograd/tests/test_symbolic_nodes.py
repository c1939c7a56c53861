"""Symbolic numbers become nodes of the graph: sizes are read where they are first needed, expressions are written once."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx

from treadle_autograd import UnsupportedGraph
from treadle_autograd.symbolic_nodes import SymbolicNodes
from treadle_shapes import ShapeEnv
from treadle_shapes.torch import fake_mode, fake_shape_env, fake_tensor, raw_expr

aten = torch.ops.aten


@pytest.fixture
def parts():
    """A graph with one input of symbolic sizes (n, m), its value, and the writer of number nodes."""
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    value = fake_tensor(mode, torch.empty(6, 5), [env.create_symbol(6, "n"), env.create_symbol(5, "m")])
    graph = fx.Graph()
    node = graph.placeholder("x")
    node.meta["val"] = value
    nodes = SymbolicNodes(graph)
    nodes.bind_sizes(value, node)
    return graph, value, nodes


def test_a_size_is_read_once(parts):
    graph, value, nodes = parts
    assert len(graph.nodes) == 1
    total = nodes.node_for(value.shape[0] + 2)
    again = nodes.node_for(value.shape[0] + 2)
    assert again is total and total.target is operator.add
    assert [n.target for n in graph.nodes if n.op == "call_function"] == [aten.sym_size.int, operator.add]
    assert raw_expr(total.meta["val"]) is raw_expr(value.shape[0] + 2)


def test_strides_follow_from_sizes(parts):
    _, value, nodes = parts
    assert nodes.node_for(value.stride(0)) is nodes.node_for(value.shape[1])


def test_constants_are_numbers(parts):
    graph, value, nodes = parts
    assert nodes.node_for(value.shape[0] - value.shape[0]) == 0
    assert len(graph.nodes) == 1


def test_what_no_input_tells_is_refused(parts):
    graph, value, nodes = parts
    other = ShapeEnv().create_symbol(7, "elsewhere", size=False)
    with pytest.raises(UnsupportedGraph, match="no input has the size"):
        nodes.node_of_expression(other)
    nodes.alias(raw_expr(value.shape[0]), other)
    assert nodes.node_of_expression(other).args == (next(iter(graph.nodes)), 0)
