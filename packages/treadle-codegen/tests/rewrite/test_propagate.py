"""Fake values of new nodes, and of a whole graph after layouts changed."""

from __future__ import annotations

import torch
from aten_capture import capture

from treadle_codegen.rewrite.propagate import fake_mode_of, insert_call, propagate_layouts, same_layout
from treadle_codegen.rewrite.text import format_graph

aten = torch.ops.aten


def test_a_new_call_gets_its_value_and_the_users_line() -> None:
    graph = capture(lambda x: x.relu(), [torch.randn(2, 3)]).graph
    mode, relu = fake_mode_of(graph), next(n for n in graph.nodes if n.target is aten.relu.default)
    assert mode is not None
    relu.meta["stack_trace"] = "File user.py"
    with graph.inserting_after(relu):
        node = insert_call(graph, mode, relu, aten.sum.dim_IntList, relu, [1])
    assert node.meta["val"].shape == (2,) and node.meta["stack_trace"] == "File user.py"


def test_layouts_spread_and_a_view_that_they_forbid_becomes_one_of_a_copy() -> None:
    graph = capture(lambda x: (x * 2).relu().view(24), [torch.randn(2, 3, 4)]).graph
    mode = fake_mode_of(graph)
    assert mode is not None
    first = next(iter(graph.nodes))
    with mode:
        first.meta["val"] = torch.empty_strided((2, 3, 4), (12, 1, 3))
    mul = next(n for n in graph.nodes if n.target is aten.mul.Tensor)
    propagate_layouts(graph, mode, {}, {mul})
    graph.lint()
    text = format_graph(graph)
    assert "relu_default : float32 [2, 3, 4] strides [12, 1, 3]" in text
    assert "aten.clone.default(relu_default, memory_format=torch.contiguous_format)" in text
    assert "view_default : float32 [24] strides [1]" in text


def test_layouts_are_compared_throughout() -> None:
    a, b = torch.empty(2, 3), torch.empty(3, 2).t()
    assert same_layout((a, 3), (a, 4)) and not same_layout((a, b), (a, a)) and not same_layout((a,), (a, a))
    assert not same_layout(a, None)
