"""Backward in stages: gradients are handed to autograd as they become ready, where somebody waits for them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import fx

from treadle_autograd import aot


def chain(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    for w in weights:
        x = torch.tanh(x @ w)
    return x


class Compiled:
    """A compiled chain of layers; `events` tells what has run, and whose gradients have been accumulated."""

    def __init__(self, function: Any, inputs: Sequence[torch.Tensor], hooked: Sequence[int]) -> None:
        self.events: list[Any] = []
        graph = fx.Graph()
        nodes = [graph.placeholder(f"p{k}") for k in range(len(inputs))]
        results = function(*map(fx.Proxy, nodes))
        results = results if isinstance(results, tuple) else (results,)
        graph.output(tuple(result.node for result in results))
        for k in hooked:
            inputs[k].register_post_accumulate_grad_hook(lambda p, k=k: self.events.append(k))
        self.gm = fx.GraphModule(torch.nn.Module(), graph)
        self.run = aot(self.gm, inputs, inference=False, forward=self.compile)

    def compile(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        def run(*args: Any) -> Any:
            self.events.append("run")
            return gm(*args)

        return run


def leaves(n: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(4, 4, dtype=torch.float64, requires_grad=True) for _ in range(n)]


def test_gradients_of_late_layers_are_accumulated_before_backward_goes_on():
    inputs = leaves(5)
    compiled = Compiled(chain, inputs, range(5))
    for _ in range(2):
        del compiled.events[:]
        compiled.run(*inputs)[0].sum().backward()
        assert compiled.events == ["run", "run", 4, "run", 3, "run", 2, "run", 1, "run", 0] or (
            compiled.events[:8] == ["run", "run", 4, "run", 3, "run", 2, "run"] and set(compiled.events[8:]) == {0, 1}
        )


def test_backward_is_one_graph_where_nobody_waits():
    inputs = leaves(5)
    compiled = Compiled(chain, inputs, [])
    compiled.run(*inputs)[0].sum().backward()
    assert compiled.events == ["run", "run"]


def test_hooks_registered_later_are_seen_on_the_first_and_the_last_parameter():
    inputs = leaves(4)
    compiled = Compiled(chain, inputs, [])
    compiled.run(*inputs)
    inputs[-1].register_post_accumulate_grad_hook(lambda p: compiled.events.append("hook"))
    del compiled.events[:]
    compiled.run(*inputs)[0].sum().backward()
    assert compiled.events.index("hook") < len(compiled.events) - 1


@pytest.mark.parametrize("asked", [[0], [4], [1, 3], [0, 1, 2, 3, 4]])
@pytest.mark.parametrize("create_graph", [False, True])
def test_some_gradients(asked: list[int], create_graph: bool):
    inputs = leaves(5)
    compiled = Compiled(chain, inputs, range(5))
    found, expected = (
        torch.autograd.grad(f(*inputs)[0].square().sum(), [inputs[k] for k in asked], create_graph=create_graph)
        for f in (compiled.run, compiled.gm)
    )
    torch.testing.assert_close(found, expected)
    if create_graph:
        again = [torch.autograd.grad(sum(g.square().sum() for g in grads), inputs) for grads in (found, expected)]
        torch.testing.assert_close(*again)


def tied(x, u, v):
    """`u` is used by the first and by the last layer."""
    return torch.tanh(torch.tanh(x @ u) @ v) @ u.t()


def shared_gradient(x, u, v):
    """The gradient of `u` is also what the gradient of `v` is computed from."""
    return torch.sin(v * x) + u


def several_outputs(x, u, v):
    hidden = torch.tanh(x @ u)
    return hidden, torch.sin(hidden @ v), x


def views(x, u, v):
    a, b = (x @ u).split(2)
    return (a.t() @ b).reshape(-1) * v.view(-1)[:16]


def unused(x, u, v):
    return x @ u, v.detach()


@pytest.mark.parametrize("function", [tied, shared_gradient, several_outputs, views, unused], ids=lambda f: f.__name__)
def test_gradients_are_those_of_eager(function: Any):
    def in_place(p: torch.Tensor) -> None:
        assert p.grad is not None
        p.grad.mul_(3)  # whoever gets a gradient may write to it

    inputs = leaves(3)
    compiled = Compiled(function, inputs, [])
    for p in inputs:
        p.register_post_accumulate_grad_hook(in_place)
    found = []
    for run in (compiled.run, compiled.gm):
        for p in inputs:
            p.grad = None
        sum(out.cos().sum() for out in run(*inputs) if out.requires_grad).backward()
        found.append([p.grad for p in inputs])
    torch.testing.assert_close(*found)


def test_a_second_backward_pass():
    inputs = leaves(4)
    compiled = Compiled(chain, inputs, range(4))
    (out,) = compiled.run(*inputs)
    out.sum().backward(retain_graph=True)
    first = [p.grad.clone() for p in inputs]
    out.sum().backward()
    torch.testing.assert_close([p.grad for p in inputs], [2 * grad for grad in first])
    with pytest.raises(RuntimeError, match="a second time"):
        out.sum().backward()


def test_a_parameter_changed_in_between_raises():
    inputs = leaves(3)
    compiled = Compiled(chain, inputs, range(3))
    (out,) = compiled.run(*inputs)
    with torch.no_grad():
        inputs[1].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("is_seen", [True, False], ids=["version", "data"])
@pytest.mark.parametrize("function", [chain, tied, several_outputs, views], ids=lambda f: f.__name__)
def test_hooks_that_change_their_parameters(function: Any, is_seen: bool):
    def step(p: torch.Tensor) -> None:
        assert p.grad is not None
        (p.detach() if is_seen else p.data).sub_(0.1 * p.grad)
        p.grad = None

    inputs = leaves(3)
    compiled = Compiled(function, inputs, [])
    before = [p.detach().clone() for p in inputs]
    for p in inputs:
        p.register_post_accumulate_grad_hook(step)
    found = []
    for run in (compiled.run, compiled.gm):
        for p, value in zip(inputs, before, strict=True):
            p.data.copy_(value)
        sum(out.cos().sum() for out in run(*inputs)).backward()
        found.append([p.detach().clone() for p in inputs])
    torch.testing.assert_close(*found)


def test_a_hook_that_raises_leaves_nothing_behind():
    inputs = leaves(4)
    compiled = Compiled(chain, inputs, range(4))

    def fail(p: torch.Tensor) -> None:
        raise ValueError("enough")

    handle = inputs[2].register_post_accumulate_grad_hook(fail)
    (out,) = compiled.run(*inputs)
    with pytest.raises(ValueError, match="enough"):
        out.sum().backward()
    handle.remove()
    gone = weakref.ref(out)
    del out
    assert gone() is None
    for p in inputs:
        p.grad = None
    compiled.run(*inputs)[0].sum().backward()
    expected = torch.autograd.grad(compiled.gm(*inputs)[0].sum(), inputs)
    torch.testing.assert_close([p.grad for p in inputs], list(expected))


def test_calls_without_a_backward_pass_leak_nothing():
    inputs = leaves(3)
    compiled = Compiled(several_outputs, inputs, range(3))
    gc.disable()
    try:
        for _ in range(2):
            results = compiled.run(*inputs)
            gone = [weakref.ref(result) for result in results[:2]]
            del results
            assert [reference() for reference in gone] == [None, None]
    finally:
        gc.enable()


def test_saved_tensors_are_packed_once():
    inputs = leaves(4)
    counts = []
    for hooked in ([], range(4)):
        compiled = Compiled(chain, inputs, hooked)
        packed: list[torch.Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, packed=packed: (packed.append(t), t)[1], lambda t: t):
            (out,) = compiled.run(*inputs)
        out.sum().backward()
        counts.append(len(packed))
    assert counts[0] == counts[1]


def test_stages_compute_nothing_from_outputs_without_tangents():
    """Zeros times the infinite derivatives of the second output would be nan."""

    def function(x: torch.Tensor, *weights: torch.Tensor) -> Any:
        hidden = chain(x, *weights)
        return hidden, (hidden - hidden).square().sum().sqrt() * weights[-1].sum(), (hidden - hidden).norm()

    inputs = leaves(6)
    compiled = Compiled(function, inputs, range(6))
    for chosen in ([0], [0, 2], [0, 1, 2], [0]):
        del compiled.events[:]
        expected, found = [], []
        for run, gradients in ((compiled.gm, expected), (compiled.run, found)):
            for leaf in inputs:
                leaf.grad = None
            outputs = run(*inputs)
            torch.autograd.backward([outputs[k].sum() for k in chosen])
            gradients += [leaf.grad for leaf in inputs]
        torch.testing.assert_close(found, expected, equal_nan=True)
        assert compiled.events.count("run") > 3
