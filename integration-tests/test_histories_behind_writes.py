"""Results that are computed from one another, where the program has written to one of them and autograd has not seen it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import treadle


@pytest.fixture(autouse=True)
def fresh():
    treadle.reset()
    yield
    treadle.reset()


class Filled(torch.autograd.Function):
    """Writes to a part of its argument so that autograd does not count it, and returns the argument."""

    @staticmethod
    def forward(ctx, whole, value, index):
        ctx.index = index
        whole.data[index] = value
        return whole

    @staticmethod
    def backward(ctx, gradient):
        return gradient, gradient[ctx.index], None


def filled_step_by_step(w, x):
    """A Runge-Kutta step as solvers of differential equations write it."""
    stages = torch.empty(*x.shape, 4, dtype=x.dtype)
    stages = Filled.apply(stages, x * 2, (..., 0))
    for n in range(3):
        y = x + torch.sum(stages[..., : n + 1] * 0.5, dim=-1).view_as(x)
        stages = Filled.apply(stages, torch.tanh(y @ w), (..., n + 1))
    return torch.sum(stages * 0.3, -1).sin(), stages[..., -1], stages, y


def clamped_before_use(w, x):
    h = x * 2
    with torch.no_grad():
        h.clamp_(min=0.1)
    z = (h * w[0]).sin()
    return h, z, (z * h).sum()


def copied_before_use(w, x):
    h = x * 2
    k = Filled.apply(h + 0, x[0] * 3, 0)
    z = k.sin() * w[0]
    return z.cos(), z, k


PROGRAMS = [filled_step_by_step, clamped_before_use, copied_before_use]


def plain(function, w, x):
    results = function(w, x)
    loss = sum((result * result.detach().cos()).sum() for result in results)
    return [*results, *torch.autograd.grad(loss, [w, x])]


def hooks(function, w, x):
    results, seen = function(w, x), list[Any]()
    for result in results[:-1]:
        result.retain_grad()
        result.register_hook(lambda gradient: seen.append(gradient.clone()))
    sum((result * (1 + n)).sum() for n, result in enumerate(results)).backward()
    return [*[result.grad for result in results[:-1]], w.grad, x.grad, *seen]


def named(function, w, x):
    results = function(w, x)
    loss = results[-1].sum() + (results[0] * 2).sum()
    return torch.autograd.grad(loss, [*results[:-1], x], allow_unused=True)


def second(function, w, x):
    results = function(w, x)
    loss = results[-1].sum() + (results[0] ** 2).sum()
    first = torch.autograd.grad(loss, [*results[:-1], x], create_graph=True, allow_unused=True)
    penalty = sum((gradient**2).sum() for gradient in first if gradient is not None)
    return [*first, *torch.autograd.grad(penalty, [w, x, *results[:-1]], allow_unused=True)]


@pytest.mark.parametrize("how", [plain, hooks, named, second])
@pytest.mark.parametrize("function", PROGRAMS)
def test_gradients_are_eagers(function, how):
    fast = treadle.compile(function)
    torch.manual_seed(5)
    for _ in range(3):
        w, x = (torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in ((5, 5), (3, 5)))
        expected = how(function, w, x)
        w.grad = x.grad = None
        for got, want in zip(how(fast, w, x), expected, strict=True):
            assert (got is None) == (want is None)
            if got is not None:
                torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("function", [filled_step_by_step, copied_before_use])
def test_compiled_where_the_written_result_is_not_written_again(function):
    w, x = (torch.randn(5, 5, requires_grad=True) for _ in range(2))
    treadle.compile(function)(w, x)
    assert treadle.stats().graphs == 1
    assert not treadle.stats().eager_graphs
