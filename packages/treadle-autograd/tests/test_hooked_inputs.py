"""Hooks on inputs that some outputs do not depend on are called in the passes that come to them, with gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kept.keeping import KeepingGraphs
from torch import fx

from treadle_autograd import aot


def two_heads(x, v, w):
    return (x @ v).sin(), (x @ w).cos()


def one_of_both(x, v, w):
    hidden = (x @ v).sin()
    return hidden, (hidden @ w).cos()


def passes(function: Any, begins: tuple[int, ...], kind: str, is_leaf: bool) -> list[Any]:
    """Which hooks the pass from these outputs calls, and with what; and the gradients."""
    leaves = [torch.linspace(-1, k, 9).view(3, 3).clone().requires_grad_() for k in (1, 2, 3)]
    given = leaves if is_leaf else [leaf * 2 for leaf in leaves]
    calls: list[Any] = []
    for name, tensor in zip("xvw", given, strict=True):
        if kind == "gradient":
            tensor.register_hook(lambda gradient, name=name: calls.append((name, gradient.clone())))
        elif is_leaf:
            tensor.register_post_accumulate_grad_hook(lambda t, name=name: calls.append((name, t.grad.clone())))
    results = function(*given)
    sum(results[k].sum() for k in begins).backward()
    return [sorted(name for name, _ in calls), {name: value for name, value in calls}, [leaf.grad for leaf in leaves]]


@pytest.mark.parametrize("is_leaf", (True, False))
@pytest.mark.parametrize("kind", ("gradient", "accumulated"))
@pytest.mark.parametrize("function", (two_heads, one_of_both))
def test_hooks_get_gradients(function, kind, is_leaf):
    examples = [torch.ones(3, 3, requires_grad=True) for _ in range(3)]
    examples = examples if is_leaf else [t * 1 for t in examples]
    compiled = aot(fx.symbolic_trace(function), examples, inference=False, forward=KeepingGraphs())
    for begins in ((0,), (1,), (0, 1)):
        expected, found = (passes(f, begins, kind, is_leaf) for f in (function, compiled))
        assert found[0] == expected[0]
        for a, b in zip(found[1:], expected[1:], strict=True):
            torch.testing.assert_close(a, b)


def test_calls_without_hooks_run_compiled():
    ran: list[int] = []

    class Counting(KeepingGraphs):
        def __call__(self, gm: fx.GraphModule, example_inputs: Any) -> Any:
            forward = super().__call__(gm, example_inputs)
            return lambda *args: ran.append(1) or forward(*args)

    x, v, w = (torch.ones(3, 3, requires_grad=True) for _ in range(3))
    compiled = aot(fx.symbolic_trace(two_heads), [x, v, w], inference=False, forward=Counting())
    compiled(x, v, w)
    assert len(ran) == 1
    handle = w.register_hook(lambda gradient: None)
    compiled(x, v, w)
    assert len(ran) == 1
    handle.remove()
    compiled(x, v, w)
    assert len(ran) == 2
