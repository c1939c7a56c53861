"""Which programs have histories that their functional graphs, run under autograd, have not. Their nodes are single calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from treadle_autograd.joint import trace_joint

Build = Callable[[fx.Graph, fx.Node], fx.Node]


def quietly(graph: fx.Graph, call: Callable[[], fx.Node]) -> fx.Node:
    graph.call_function(torch._C._set_grad_enabled, (False,))
    made = call()
    graph.call_function(torch._C._set_grad_enabled, (True,))
    return made


def clamped(graph: fx.Graph, h: fx.Node) -> fx.Node:
    quietly(graph, lambda: graph.call_method("clamp_", (h, 0.0)))
    return h


def part_written(graph: fx.Graph, h: fx.Node) -> fx.Node:
    quietly(graph, lambda: graph.call_method("zero_", (graph.call_method("select", (h, 0, 0)),)))
    return h


def through_data(graph: fx.Graph, h: fx.Node) -> fx.Node:
    graph.call_method("mul_", (graph.call_function(getattr, (h, "data")), 2))
    return h


def through_detached(graph: fx.Graph, h: fx.Node) -> fx.Node:
    graph.call_method("mul_", (graph.call_method("detach", (h,)), 2))
    return h


def similarity(graph: fx.Graph, h: fx.Node) -> fx.Node:
    return graph.call_function(torch.nn.functional.cosine_similarity, (h, h))


def straight_through(graph: fx.Graph, h: fx.Node) -> fx.Node:
    rounded = graph.call_function(torch.round, (h,))
    return graph.call_function(
        torch.add, (h, graph.call_method("detach", (graph.call_function(torch.sub, (rounded, h)),)))
    )


def metric(graph: fx.Graph, h: fx.Node) -> fx.Node:
    quietly(graph, lambda: graph.call_method("mean", (h,)))
    return h


def recorded_write(graph: fx.Graph, h: fx.Node) -> fx.Node:
    return graph.call_method("mul_", (h, 2))


def fresh_buffer(graph: fx.Graph, h: fx.Node) -> fx.Node:
    """A tensor without a history gets one when it is written to."""
    buffer = graph.call_function(torch.zeros, (3, 3))
    return graph.call_method("copy_", (buffer, h))


def view_taken_again(graph: fx.Graph, h: fx.Node) -> fx.Node:
    view = graph.call_method("view", (h, -1))
    graph.call_method("mul_", (h, 2))
    quietly(graph, lambda: graph.call_method("sin", (view,)))
    return view


def leaf_in_the_same_memory(graph: fx.Graph, h: fx.Node) -> fx.Node:
    """As an adjoint method takes the states of a solution. No element is written to."""
    leaf = graph.call_method("requires_grad_", (graph.call_method("detach", (h,)),))
    graph.call_method("sin", (leaf,))
    return h


def turned_in_place(graph: fx.Graph, h: fx.Node) -> fx.Node:
    graph.call_method("t_", (graph.call_method("detach", (h,)),))
    return h


@pytest.mark.parametrize(
    ("build", "is_lost"),
    [
        *((build, True) for build in (clamped, part_written, through_data, through_detached, similarity)),
        *((build, False) for build in (straight_through, metric, recorded_write, fresh_buffer, view_taken_again)),
        *((build, False) for build in (leaf_in_the_same_memory, turned_in_place)),
    ],
)
def test_lost_histories(build: Build, is_lost: bool) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    result = build(graph, graph.call_function(torch.cos, (x,)))
    graph.output((graph.call_function(torch.sin, (result,)),))
    gm = fx.GraphModule(torch.nn.Module(), graph)
    joint: Any = trace_joint(gm, [torch.randn(3, 3, requires_grad=True)], {})
    assert (joint.lossy is not None) is is_lost, joint.lossy
