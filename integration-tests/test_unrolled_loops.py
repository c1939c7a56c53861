"""Loops that unroll into large graphs: right values, and kernels whose number does not grow with the steps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import treadle

torch.manual_seed(0)
GRU = nn.GRUCell(6, 8)
FIELD = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 6))


def iir_filter(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for n in range(x.shape[1]):
        y = b[0] * x[:, n]
        if n > 0:
            y = y + b[1] * x[:, n - 1] - a[1] * out[:, n - 1]
        out[:, n] = y
    return out


def recurrence(x: Tensor) -> Tensor:
    h = x.new_zeros(x.shape[1], 8)
    found = []
    for t in range(x.shape[0]):
        h = GRU(x[t], h)
        found.append(h)
    return torch.stack(found)


def ode(x: Tensor) -> Tensor:
    y = x[0]
    for t in range(x.shape[0]):
        y = y + 0.01 * FIELD(y) * x[t]
    return y


def sinkhorn(x: Tensor) -> Tensor:
    u = torch.zeros(x.shape[1])
    for t in range(x.shape[0]):
        v = -torch.logsumexp(x[t] + u[:, None], dim=0)
        u = -torch.logsumexp(x[t] + v, dim=1)
    return u


def warping(x: Tensor, y: Tensor) -> Tensor:
    cost = (x[:, :, None] - y[:, None, :]).abs()
    n, m = cost.shape[1:]
    best = torch.full((cost.shape[0], n + 1, m + 1), float("inf"))
    best[:, 0, 0] = 0
    for i in range(n):
        for j in range(m):
            least = torch.minimum(torch.minimum(best[:, i, j + 1], best[:, i + 1, j]), best[:, i, j])
            best[:, i + 1, j + 1] = cost[:, i, j] + least
    return best[:, n, m]


def viterbi(emissions: Tensor, transitions: Tensor) -> tuple[Tensor, Tensor]:
    score, history = emissions[0], []
    for t in range(1, emissions.shape[0]):
        best, index = (score[:, :, None] + transitions).max(dim=1)
        score = best + emissions[t]
        history.append(index)
    best, tag = score.max(dim=1)
    path = [tag]
    for index in reversed(history):
        tag = index.gather(1, tag[:, None]).squeeze(1)
        path.append(tag)
    return best, torch.stack(path[::-1])


def memory(x: Tensor, w: Tensor) -> Tensor:
    found = []
    for t in range(x.shape[0]):
        gradient = torch.func.grad(lambda w, t=t: ((x[t] @ w).sigmoid() - x[t]).square().sum())(w)
        w = 0.99 * w - 0.1 * gradient
        found.append((x[t] @ w).sum(0))
    return torch.stack(found)


def of_steps(program: Callable[..., Any], steps: int) -> tuple[Tensor, ...]:
    torch.manual_seed(1)
    if program is iir_filter:
        return torch.randn(2, steps), torch.tensor([1.0, -0.5]), torch.tensor([0.3, 0.2])
    if program is warping:
        return torch.randn(3, steps), torch.randn(3, 8)
    if program is viterbi:
        return torch.randn(steps, 3, 5), torch.randn(5, 5)
    if program is memory:
        return torch.randn(steps, 3, 6), torch.randn(6, 6)
    return (torch.randn(steps, 6, 6),)


class Kernels(logging.Handler):
    """Counts the kernels of the units that are written."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += record.getMessage().count("KERNEL ")


@pytest.fixture
def kernels() -> Any:
    handler, logger = Kernels(), logging.getLogger("treadle.output_code")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


PROGRAMS = [iir_filter, recurrence, ode, sinkhorn, warping, viterbi, memory]
# Autograd refuses programs that write over what they have read.
TRAINED = [recurrence, ode, sinkhorn, viterbi, memory]


def check(program: Callable[..., Any], steps: int, trains: bool) -> None:
    def run(function: Callable[..., Any]) -> list[Tensor]:
        args = [a.clone().requires_grad_(trains) for a in of_steps(program, steps)]
        with torch.set_grad_enabled(trains):
            result = function(*args)
        found = list(result) if isinstance(result, tuple) else [result]
        if trains:
            found[0].sum().backward()
            found += [a.grad for a in args if a.grad is not None]
        return found

    compiled = treadle.compile(program, dynamic=False)
    for _ in range(2):
        for expected, actual in zip(run(program), run(compiled), strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def counts_of(program: Callable[..., Any], steps: tuple[int, int], trains: bool, kernels: Kernels) -> list[int]:
    counts = []
    for n in steps:
        treadle.reset()
        kernels.count = 0
        check(program, n, trains)
        assert not treadle.stats().breaks
        counts.append(kernels.count)
    assert counts[0] > 0
    return counts


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_kernels_of_unrolled_loops(program: Callable[..., Any], kernels: Kernels) -> None:
    few, many = counts_of(program, (10, 20) if program is warping else (60, 120), False, kernels)
    assert many <= few + 6  # how the last kernels end depends on the number of steps


@pytest.mark.parametrize("program", TRAINED, ids=lambda f: f.__name__)
def test_kernels_of_unrolled_loops_in_training(program: Callable[..., Any], kernels: Kernels) -> None:
    few, many = counts_of(program, (60, 120), True, kernels)
    assert many <= few + 60 // 3  # sums of gradients over steps join kernels that begin at different steps


def test_a_loop_that_is_too_long_is_left_to_python_with_its_reason() -> None:
    args = of_steps(iir_filter, 4000)
    compiled = treadle.compile(iir_filter)
    torch.testing.assert_close(compiled(*args), iir_filter(*args))
    (skip,) = treadle.stats().skipped
    assert "operations" in str(skip)
    assert treadle.stats().graphs == 0
