"""Functions of autograd inside `vmap` whose rule for it is that of their forward body, against eager."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex


class Squared(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, factor):
        return x * x * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient * ctx.factor, None


class ByHand(Squared):
    generate_vmap_rule = False

    @staticmethod
    def vmap(info, in_dims, x, factor):
        return x * x * factor + 1, in_dims[0]


def mapped(x):
    return torch.vmap(lambda row: Squared.apply(row, 3) + 1)(x)


def mapped_twice(x):
    return torch.vmap(torch.vmap(lambda item: Squared.apply(item, 2)))(x)


def rule_by_hand(x):
    return torch.vmap(lambda row: ByHand.apply(row, 3))(x)


def masked(x):
    table = x[:, 0].detach()
    with TransformGetItemToIndex():
        return torch.vmap(lambda k: table[k] + 1)(torch.arange(2)) + x.sum()


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("function", [mapped, mapped_twice, rule_by_hand, masked], ids=lambda f: f.__name__)
def test_results_and_gradients(function, requires_grad):
    run, _ = compiled(function)
    for start in (0.0, 1.0):
        x, y = (torch.arange(start, start + 6).view(2, 3).requires_grad_(requires_grad) for _ in range(2))
        found, expected = run(x), function(y)
        torch.testing.assert_close(found, expected)
        if requires_grad:
            found.sum().backward()
            expected.sum().backward()
            torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("function", [mapped, mapped_twice, masked], ids=lambda f: f.__name__)
def test_one_graph(function):
    run, recorder = compiled(function, fullgraph=True)
    run(torch.ones(2, 3))
    assert len(recorder.graphs) == 1
