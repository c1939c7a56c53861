"""Graphs run node by node with the values and numbers of the tracer."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx

from treadle_autograd import user_line
from treadle_autograd.errors import Refusal
from treadle_autograd.graph_runner import GraphRunner, call_node, is_number_call
from treadle_shapes import ShapeEnv
from treadle_shapes.torch import fake_mode, fake_shape_env, sym_int


def test_the_innermost_user_line():
    trace = '  File "outer.py", line 3, in f\n    g(x)\n  File "inner.py", line 12, in g\n    return x + 1\n'
    assert user_line(trace) == "inner.py:12"
    assert user_line(None) == user_line("no file here") == ""


def test_values_attributes_and_outputs():
    graph = fx.Graph()
    x, weight = graph.placeholder("x"), graph.get_attr("weight")
    product = graph.call_function(operator.mul, (x, weight))
    graph.output(graph.call_method("neg", (product,)))
    seen = []
    mode = fake_mode()

    def run_call(node, args, kwargs):
        seen.append((node.name, args))
        return call_node(node, args, kwargs, mode)

    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.ones(2))
    runner = GraphRunner(fx.GraphModule(module, graph), {"weight": torch.tensor([2.0, 3.0])}, run_call)
    (result,) = runner.run(torch.tensor([5.0, 7.0]), enable_io_processing=False)
    assert result.tolist() == [-10.0, -21.0]
    assert [name for name, _ in seen] == ["mul", "neg"]


def test_numbers_from_numbers_are_the_tracers():
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    n = sym_int(env, env.create_symbol(5, "n"))
    graph = fx.Graph()
    number, tensor = graph.placeholder("n"), graph.placeholder("x")
    number.meta["example_value"] = n
    doubled = graph.call_function(operator.mul, (number, 2))
    doubled.meta["example_value"] = expected = n * 2
    scaled = graph.call_function(operator.mul, (tensor, number))
    assert is_number_call(doubled) and not is_number_call(scaled)
    assert call_node(doubled, (n, 2), {}, mode) is expected


def test_refusals_name_the_line_of_the_node():
    node = fx.Graph().call_method("view", ())
    node.meta["stack_trace"] = '  File "model.py", line 4, in f\n    x.view(3)'
    with pytest.raises(Refusal, match="at model.py:4"):
        call_node(node, (torch.ones(2), 3), {}, fake_mode())
