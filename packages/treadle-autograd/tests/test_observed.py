"""Outputs that others are computed from: who asks for their gradients gets them, and who does not runs the compiled backward graph."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from aten_runner import run_aten
from torch import fx

from treadle_autograd import aot, training

graph = torch.autograd.graph


def two_outputs(x, w):
    h = x @ w
    return h, (h.tanh() * w.sum()).sum()


def written_input(x, w):
    x.add_(w)
    return x, (x.tanh() * w).sum()


PROGRAMS = (two_outputs, written_input)
NAMED = {
    "w": lambda x, w, h: [w],
    "both inputs": lambda x, w, h: [x, w],
    "an output": lambda x, w, h: [h],
    "an output and an input": lambda x, w, h: [w, h],
    "an edge": lambda x, w, h: [graph.get_gradient_edge(h)],
    "an edge and an input": lambda x, w, h: [graph.get_gradient_edge(h), w],
}


def gradients(function, named, how):
    x, w = (torch.linspace(-1, 1, 9).view(3, 3) * k for k in (1, 2))
    x, w = (t.requires_grad_() for t in (x, w))
    h, loss = function(x * 1, w)
    inputs = NAMED[named](x, w, h)
    if how == "grad":
        return torch.autograd.grad(loss, inputs, retain_graph=True)
    if how == "edge of the loss":
        return torch.autograd.grad(graph.get_gradient_edge(loss), inputs)
    if how == "twice":
        (first, *_) = torch.autograd.grad(loss, inputs, create_graph=True)
        return torch.autograd.grad(first.sum(), [w, h], allow_unused=True)
    assert how == "backward"
    if any(not isinstance(t, torch.Tensor) for t in inputs):
        return ()
    h.retain_grad()
    loss.backward(inputs=inputs)
    return [t.grad for t in inputs]


def compiled(function):
    examples = [torch.ones(3, 3, requires_grad=True) for _ in range(2)]
    return aot(fx.symbolic_trace(function), [t * 1 for t in examples], inference=False, forward=run_aten)


@pytest.mark.parametrize("how", ("grad", "edge of the loss", "twice", "backward"))
@pytest.mark.parametrize("named", NAMED)
@pytest.mark.parametrize("function", PROGRAMS)
def test_named_gradients(function, named, how):
    found, expected = (gradients(f, named, how) for f in (compiled(function), function))
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("named", ("w", "both inputs"))
@pytest.mark.parametrize("function", PROGRAMS)
def test_gradients_of_inputs_alone_run_compiled(function, named, monkeypatch):
    def fail(*_):
        raise AssertionError("ran in eager")

    fast = compiled(function)
    monkeypatch.setattr(training.Call, "rerun_cut", fail)
    monkeypatch.setattr(training.Call, "rerun", fail)
    for a, b in zip(gradients(fast, named, "grad"), gradients(function, named, "grad"), strict=True):
        torch.testing.assert_close(a, b)


def at_a_singular_point(x, w):
    error = (x - x.detach()).square().mean().sqrt()  # 0, where the derivative of a square root is infinite
    return x * w, error, (x * w).tanh() * error.detach().clamp_min(1), error**-0.2


@pytest.mark.parametrize("chosen", ((0,), (2,), (0, 2)))
def test_named_gradients_take_nothing_from_other_outputs(chosen):
    """Zeros as the gradient of the error, times its infinite derivative, are nan."""
    found = []
    for function in (compiled(at_a_singular_point), at_a_singular_point):
        x, w = (torch.linspace(-1, 1, 9).view(3, 3).mul(k).requires_grad_() for k in (1, 2))
        outputs = function(x, w)
        found.append(torch.autograd.grad(sum(outputs[k].sum() for k in chosen), [x, w]))
    for a, b in zip(*found, strict=True):
        assert b.isfinite().all()
        torch.testing.assert_close(a, b)


def test_the_engine_is_not_asked_for_named_leaves(monkeypatch):
    """It answers by an exception that takes longer than a small backward graph."""
    asked = []
    ask = torch._C._will_engine_execute_node

    def asking(node):
        asked.append(node)
        return ask(node)

    def program(x, w):
        return (x * w).tanh().sum()

    fast = compiled(program)
    x, w = torch.ones(3, 3, requires_grad=True), torch.ones(3, 3, requires_grad=True)
    monkeypatch.setattr(torch._C, "_will_engine_execute_node", asking)
    (found,) = torch.autograd.grad(fast(x, w)[0], [w])
    assert [node.variable is x for node in asked] == [True]
    torch.testing.assert_close(found, torch.autograd.grad(program(x, w), [w])[0])


def test_a_pass_inside_another_one():
    """The caller of the inner pass names an output of a call that the outer pass does not."""

    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, h, loss):
            ctx.held = h, loss
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            h, loss = ctx.held
            return g * torch.autograd.grad(loss, h, retain_graph=True)[0], None, None

    found = []
    for function in (compiled(two_outputs), two_outputs):
        x, w = torch.linspace(-1, 1, 9).view(3, 3).requires_grad_(), torch.linspace(0, 1, 9).view(3, 3).requires_grad_()
        h, loss = function(x, w)
        v = torch.ones(3, 3, requires_grad=True)
        total = Inner.apply(v, h, loss).sum()
        found.append(torch.autograd.grad(total + loss, [v, w]))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


IN_A_FRESH_PROCESS = """
import torch
with torch.{mode}():
    import treadle_autograd.observed
import treadle_autograd
from torch import fx
fast = treadle_autograd.aot(
    fx.symbolic_trace(lambda x: (x.exp(), x.exp().tanh())), [torch.ones(2, requires_grad=True)], inference=False, forward=lambda gm, _: gm
)
x = torch.ones(2, requires_grad=True)
fast(x)[1].sum().backward()
assert x.grad is not None
"""


@pytest.mark.parametrize("mode", ("no_grad", "inference_mode"))
def test_imported_where_nothing_is_recorded(mode):
    subprocess.run([sys.executable, "-c", IN_A_FRESH_PROCESS.format(mode=mode)], check=True, timeout=120)
