"""What calls of a traced graph write to, and which failing graphs Python may run after."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from treadle_tracer.output.graph_writes import draws_random_numbers, why_not_deoptimise
from treadle_tracer.values.call_effects import only_computes, storages, written_arguments


@torch.library.custom_op("treadle_test::add_into", mutates_args={"target"})
def add_into(value: torch.Tensor, target: torch.Tensor) -> None:
    target.add_(value)


def call(target, args, kwargs):
    """A graph of one call, whose placeholders `x` and `y` stand for the strings "x" and "y" in the arguments."""
    graph = fx.Graph()
    nodes = {}
    for name in ("x", "y"):
        nodes[name] = graph.placeholder(name)
        nodes[name].meta["example_value"] = torch.ones(2)

    def given(value):
        if isinstance(value, list):
            return [given(item) for item in value]
        return nodes.get(value, value) if isinstance(value, str) else value

    op = "call_method" if isinstance(target, str) else "call_function"
    node = graph.create_node(op, target, tuple(map(given, args)), {k: given(v) for k, v in kwargs.items()})
    graph.output(())
    return node, fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize(
    ("target", "args", "kwargs", "written"),
    [
        (torch.add, ("x", "y"), {}, []),
        (torch.add, ("x", 1), {"out": "y"}, ["y"]),
        ("add_", ("x", "y"), {}, ["x"]),
        ("__setitem__", ("x", 0, "y"), {}, ["x"]),
        ("__iadd__", ("x", "y"), {}, ["x"]),
        ("__add__", ("x", "y"), {}, []),
        (operator.iadd, ("x", "y"), {}, ["x"]),
        (operator.setitem, ("x", 0, 1.0), {}, ["x"]),
        (operator.add, ("x", "y"), {}, []),
        (operator.invert, ("x",), {}, []),
        ("is_floating_point", ("x",), {}, []),
        (F.relu, ("x",), {"inplace": True}, ["x"]),
        (F.relu, ("x",), {"inplace": False}, []),
        (F.relu, ("x", True), {}, ["x"]),
        (F.relu, (), {"input": "x", "inplace": True}, ["x"]),
        (F.hardtanh, ("x", -1.0, 1.0, True), {}, ["x"]),
        (torch._foreach_add_, (["x", "y"], 1), {}, ["x", "y"]),
        (F.batch_norm, ("y", "x", "x"), {}, []),
        (F.batch_norm, ("y", "x", "x"), {"training": True}, ["x"]),
        (F.instance_norm, ("y", "x", "x"), {}, ["x"]),
        (torch.ops.treadle_test.add_into.default, ("x", "y"), {}, ["y"]),
        (torch.ops.treadle_test.add_into, ("x",), {"target": "y"}, ["y"]),
        (torch.ops.aten._assert_scalar.default, (True, "message"), {}, []),
    ],
)
def test_written_arguments(target, args, kwargs, written):
    node, gm = call(target, args, kwargs)
    assert sorted({argument.name for argument in written_arguments(node)}) == written
    assert (why_not_deoptimise(gm) is None) is (written == [])
    assert not (written and only_computes(node))


def traced(build):
    """A graph that `build(graph, x)` makes on a placeholder."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = torch.ones(2)
    build(graph, x)
    graph.output(())
    return fx.GraphModule(torch.nn.Module(), graph)


def test_writes_to_tensors_of_the_graph_itself_do_not_count():
    def own(graph, x):
        node = graph.call_function(torch.zeros_like, (x,))
        node.meta["example_value"] = torch.zeros(2)
        graph.call_method("add_", (node, x))

    def view(graph, x):
        node = graph.call_method("view", (x, -1))
        node.meta["example_value"] = x.meta["example_value"].view(-1)
        graph.call_method("add_", (node, 1))

    def unknown(graph, x):
        node = graph.call_method("to_sparse", (x,))
        node.meta["example_value"] = torch.ones(2).to_sparse()
        graph.call_method("zero_", (node,))

    assert why_not_deoptimise(traced(own)) is None
    assert "add_" in why_not_deoptimise(traced(view))
    assert "zero_" in why_not_deoptimise(traced(unknown))


def test_storages():
    x = torch.ones(4)
    assert storages(x) == storages(x[1:]) == storages((x[:2], [x])) and len(storages([x, torch.ones(1)])) == 2
    assert storages(None) == storages(3) == storages(torch.eye(2).to_sparse()) == set()


@pytest.mark.parametrize(
    ("target", "draws"),
    [
        (torch.sin, False),
        (torch.autograd.grad, False),
        (torch._C._set_grad_enabled, False),
        (torch.rand_like, True),
        (lambda x: x, True),
    ],
)
def test_which_calls_draw_random_numbers(target, draws):
    graph = fx.Graph()
    graph.output(graph.call_function(target, (graph.placeholder("x"),)))
    assert draws_random_numbers(fx.GraphModule(torch.nn.Module(), graph)) is draws
