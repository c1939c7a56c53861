from __future__ import annotations

import torch
from torch import fx

from treadle_autograd.graph_nodes import append_call, copy_node

aten = torch.ops.aten


def test_nodes_are_those_that_the_graph_makes_itself():
    """Names, arguments, users and order."""

    def build(graph: fx.Graph, call) -> list[fx.Node]:
        x, y = graph.placeholder("x"), graph.placeholder("y")
        first = call(graph, aten.add.Tensor, (x, y), {"alpha": 2})
        second = call(graph, aten.cat.default, ([first, x], 1), {})
        graph.output((second, first))
        return [x, y, first, second]

    mine, theirs = fx.Graph(), fx.Graph()
    build(mine, append_call)
    nodes = build(theirs, lambda graph, *call: graph.call_function(*call))
    mine.lint()
    assert str(mine) == str(theirs)
    assert [len(n.users) for n in mine.nodes] == [len(n.users) for n in theirs.nodes]

    nodes[2].meta["val"] = torch.ones(2)
    copies, table = fx.Graph(), {}
    for node in theirs.nodes:
        table[node] = copy_node(copies, node, table.__getitem__)
    copies.lint()
    assert str(copies) == str(theirs) and table[nodes[2]].meta == nodes[2].meta
    table[nodes[2]].meta["val"] = None
    assert nodes[2].meta["val"] is not None
