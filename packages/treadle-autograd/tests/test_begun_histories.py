"""Graphs that change results of other programs, and what autograd knows of them afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from treadle_autograd import aot


def _changing(x: torch.Tensor, buffer: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x.mul_(w)
    buffer.copy_(x)
    return (x * 2,)


def _changing_behind(x: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    v.detach().add_(1)
    return (x * v,)


def _changing_both(x: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    v.detach().add_(1)
    x.mul_(2)
    return (x * v,)


def test_what_autograd_records_is_told_from_what_it_does_not() -> None:
    w = torch.tensor([3.0, 4.0], requires_grad=True)
    x, buffer = w * 1, torch.zeros(2)
    run = aot(fx.symbolic_trace(_changing), [x, buffer, w], inference=False, forward=lambda gm, _: gm)
    assert run.why_eager is None and run.contract is not None
    assert [m.has_history for m in run.contract.mutations] == [True, True]
    (y,) = run(x, buffer, w)
    assert buffer.requires_grad and [x._version, buffer._version] == [1, 1]
    found = torch.autograd.grad(y.sum() + buffer.sum(), [x, w])
    assert torch.equal(found[0], torch.tensor([3.0, 3.0]))
    assert torch.equal(found[1], 2 * 3 * torch.tensor([3.0, 4.0]))


@pytest.mark.parametrize("f", [_changing_behind, _changing_both])
def test_a_parameter_changed_behind_autograds_back(f: Any) -> None:
    """Its history stays. The functional graph does not show that, so nothing is compiled where an output's gradient might be looked at."""
    found = []
    for compiles in (False, True):
        outside, v = torch.tensor([3.0, 4.0], requires_grad=True), torch.ones(2, requires_grad=True)
        x = outside * 1
        run = aot(fx.symbolic_trace(f), [x, v], inference=False, forward=lambda gm, _: gm) if compiles else f
        (y,) = run(x, v)
        assert v.is_leaf and v._version == 1
        found.append(torch.autograd.grad(y.sum(), [x, outside, v]))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert [m.has_history for m in run.contract.mutations] == [False] if f is _changing_behind else run.why_eager


def test_inference_refuses_a_history() -> None:
    w = torch.ones(2, requires_grad=True)

    def f(buffer: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        buffer.copy_(w)
        return (torch.autograd.grad((w * 2).sum(), w)[0],)

    graph = fx.Graph()
    buffer, weight = graph.placeholder("buffer"), graph.placeholder("w")
    graph.call_method("copy_", (buffer, weight))
    loss = graph.call_method("sum", (graph.call_method("mul", (weight, 2)),))
    gradients = graph.call_function(torch.autograd.grad, ((loss,), (weight,)))
    graph.output((graph.call_function(lambda pair: pair[0], (gradients,)),))
    run = aot(fx.GraphModule(torch.nn.Module(), graph), [torch.zeros(2), w], forward=lambda gm, _: gm)
    assert run.why_eager is not None
    memory = torch.zeros(2)
    assert torch.equal(run(memory, w)[0], f(torch.zeros(2), w)[0]) and memory.requires_grad


@pytest.mark.parametrize("records", [True, False])
def test_nothing_begins_for_leaves(records: bool) -> None:
    """Eager refuses to change a leaf under autograd, and so does the trace."""
    w = torch.ones(2, requires_grad=True)

    def f(w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.set_grad_enabled(records):
            w.mul_(2)
        return (w * 1,)

    graph = fx.Graph()
    weight = graph.placeholder("w")
    graph.call_function(torch._C._set_grad_enabled, (records,))
    graph.call_method("mul_", (weight, 2))
    graph.call_function(torch._C._set_grad_enabled, (True,))
    graph.output((graph.call_method("mul", (weight, 1)),))
    run = aot(fx.GraphModule(torch.nn.Module(), graph), [w], inference=False, forward=lambda gm, _: gm)
    assert (run.why_eager is None) is not records
    if not records:
        assert torch.equal(run(w)[0], torch.full((2,), 2.0)) and w.is_leaf
