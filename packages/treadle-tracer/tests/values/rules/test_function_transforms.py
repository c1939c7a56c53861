"""Transforms of torch.func as nodes: the graph, its bodies, and what is lifted into them."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled
from torch.func import grad, jvp, vjp, vmap

from treadle_tracer import Unsupported
from treadle_tracer.trace.driver import trace_function
from treadle_tracer.values.tensor import TensorValue

W = torch.randn(4, 4)


def traced(function, *args):
    """The graph module of a trace that returns one tensor, and that tensor's value in the graph's own run."""
    result = trace_function(function, args)
    node = result.value.node(None)
    module = result.graph.finish([node])
    found = module(*result.graph.example_inputs)[0]
    return module, found


def transforms(module):
    return [node for node in module.graph.nodes if hasattr(node.target, "calls")]


def targets(module):
    return [node.target for node in module.graph.nodes if node.op.startswith("call_")]


def test_a_transform_is_one_node_with_a_body():
    x = torch.randn(3, 4)
    module, found = traced(lambda x: vmap(lambda a: torch.tanh(a @ W).sum())(x), x)
    (node,) = transforms(module)
    (body,) = node.target.calls
    assert node.target.name == "vmap" and node.target.options["in_dims"] == 0
    assert len(node.args[1]) == len(body.lifted) == 1  # W
    assert len(targets(body.graph)) == 3 and not any(node.op == "get_attr" for node in body.graph.graph.nodes)
    torch.testing.assert_close(found, vmap(lambda a: torch.tanh(a @ W).sum())(x))


def test_nested_transforms_are_nodes_of_bodies():
    x = torch.randn(3, 4)
    module, found = traced(lambda x: vmap(grad(lambda a: (a @ W).sin().sum()))(x), x)
    (outer,) = transforms(module)
    (inner,) = transforms(outer.target.calls[0].graph)
    assert (outer.target.name, inner.target.name) == ("vmap", "grad")
    torch.testing.assert_close(found, vmap(grad(lambda a: (a @ W).sin().sum()))(x))


def test_a_shape_among_the_arguments():
    x = torch.randn(2, 3)
    _, found = traced(lambda x: vmap(lambda a, shape: a.reshape(shape[::-1]) * shape[0], (0, None))(x, x.shape[1:]), x)
    torch.testing.assert_close(found, x * 3)


def test_a_body_for_each_call_of_the_function():
    x = torch.randn(5, 4)
    module, found = traced(lambda x: vmap(torch.sin, chunk_size=2)(x), x)
    assert len(transforms(module)[0].target.calls) == 3
    torch.testing.assert_close(found, x.sin())


def test_numbers_are_computed_outside_the_body_where_they_can_be():
    x = torch.randn(3, 4)
    module, found = traced(lambda x: vmap(lambda a: a * x.shape[0])(x), x)
    torch.testing.assert_close(found, x * 3)


def test_a_pullback_is_called_in_the_graph():
    x = torch.randn(3, 4)
    module, found = traced(lambda x: vjp(torch.sin, x)[1](x)[0], x)
    assert len(transforms(module)) == 1
    torch.testing.assert_close(found, x.cos() * x)


def test_forward_derivatives():
    x = torch.randn(3, 4)
    _, found = traced(lambda x: jvp(torch.sin, (x,), (x,))[1], x)
    torch.testing.assert_close(found, x.cos() * x)


def test_the_grad_mode_of_a_body_is_the_transforms():
    def program(x):
        with torch.no_grad():
            y = grad(lambda a: (a * a).sum() if torch.is_grad_enabled() else a.sum())(x)
            return y * (3 if torch.is_grad_enabled() else 1)

    x = torch.randn(3)
    _, found = traced(program, x)
    torch.testing.assert_close(found, 2 * x)
    assert torch.is_grad_enabled()


def _sets_state(a):
    torch.set_grad_enabled(False)
    return a.sum()


def _writes_outside(a):
    W.add_(a)
    return a


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (lambda x: grad(_sets_state)(x), "function-transform"),
        (lambda x: vmap(_writes_outside)(x), "torch-call-raises"),
        (lambda x: vmap(lambda a: a.add_(1))(x), "function-transform"),
        (lambda x: vmap(torch.sin, in_dims=5)(x), "torch-call-raises"),
        (lambda x: vmap(lambda a: 2 if a.sum() > 0 else 3)(x), "branch-on-tensor"),
        (lambda x: grad(lambda a: (a.sum(), a.shape), has_aux=True)(x), "torch-call-raises"),  # numbers are no tensors
    ],
)
def test_what_is_no_node(program, code):
    with pytest.raises(Unsupported) as error:
        trace_function(program, (torch.randn(3, 4),))
    assert error.value.code == code
    assert torch.is_grad_enabled()


def test_what_a_step_of_a_loop_costs_does_not_grow_with_the_steps(monkeypatch):
    asked = 0
    known_node = TensorValue.known_node.fget

    def counted(value):
        nonlocal asked
        asked += 1
        return known_node(value)

    def descent(x, steps):
        for _ in range(steps):
            x = x - grad(lambda x: (x @ W).sin().sum())(x)
        return x

    monkeypatch.setattr(TensorValue, "known_node", property(counted))
    counts = []
    for steps in (10, 20, 40):
        asked = 0
        _, found = traced(lambda x, steps=steps: descent(x, steps), torch.ones(4))
        torch.testing.assert_close(found, descent(torch.ones(4), steps))
        counts.append(asked)
    assert counts[2] - counts[1] == 2 * (counts[1] - counts[0]) > 0


@pytest.mark.parametrize("program", ["size added", "rows of it", "size found", "number found"])
def test_sizes_that_change_and_sizes_that_are_found(program):
    def run(x, n):
        y = x[: n.item()] if "found" in program else x
        if program == "rows of it":
            return vmap(lambda a: a.sum() * 2 - torch.ones(x.shape[0]).cumsum(0))(x)
        if program == "number found":
            return vmap(lambda a: a * 2 + n.item())(y)
        return vmap(lambda a: a * 2 + y.shape[0])(y)

    fn, recorder = compiled(run)
    for length in (5, 7, 6, 9):
        x, n = torch.randn(length, 3), torch.tensor(length - 2)
        torch.testing.assert_close(fn(x, n), run(x, n))
    assert len(recorder.graphs) == 2 and not recorder.breaks


def test_a_body_that_finds_a_size_breaks_the_graph():
    def run(x):
        with pytest.raises(RuntimeError):
            vmap(lambda a: a[a > 0].sum())(x)
        return x + 1

    fn, _ = compiled(run)
    x = torch.randn(3, 4)
    torch.testing.assert_close(fn(x), x + 1)
