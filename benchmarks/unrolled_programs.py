"""Programs whose Python loops unroll into large graphs, by name: what builds one of a given length.

Each takes the number of steps and gives a function and its arguments. Lengths are those that such programs have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Program = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True)
class Scenario:
    """What builds the program of a number of steps, the lengths to measure, and whether gradients are taken."""

    build: Callable[[int], Program]
    steps: tuple[int, ...]
    trains: bool = False


def _filter(steps: int) -> Program:
    """A direct-form IIR filter of second order, sample by sample, into a result made before."""

    def lfilter(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for n in range(x.shape[1]):
            y = b[0] * x[:, n]
            if n > 0:
                y = y + b[1] * x[:, n - 1] - a[1] * out[:, n - 1]
            if n > 1:
                y = y + b[2] * x[:, n - 2] - a[2] * out[:, n - 2]
            out[:, n] = y
        return out

    return lfilter, (torch.randn(2, steps), torch.tensor([1.0, -0.5, 0.2]), torch.tensor([0.3, 0.2, 0.1]))


def _recurrent(steps: int) -> Program:
    """A GRU cell over a sequence."""
    cell = nn.GRUCell(16, 32)

    def run(x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[1], 32)
        found = []
        for t in range(x.shape[0]):
            h = cell(x[t], h)
            found.append(h)
        return torch.stack(found)

    return run, (torch.randn(steps, 4, 16),)


def _ode(steps: int) -> Program:
    """Euler steps of a small neural ODE."""
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8))

    def solve(y: Tensor) -> Tensor:
        dt = 1.0 / steps
        for _ in range(steps):
            y = y + dt * net(y)
        return y

    return solve, (torch.randn(16, 8),)


def _pointwise_ode(steps: int) -> Program:
    """Euler steps of the Lotka-Volterra equations: pointwise alone."""

    def solve(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        dt = 0.001
        for _ in range(steps):
            x, y = x + dt * (1.1 * x - 0.4 * x * y), y + dt * (0.1 * x * y - 0.4 * y)
        return x, y

    return solve, (torch.rand(64) + 0.5, torch.rand(64) + 0.5)


def _sinkhorn(iterations: int) -> Program:
    """Sinkhorn iterations in log space."""

    def sinkhorn(cost: Tensor) -> Tensor:
        u = torch.zeros(cost.shape[0])
        v = torch.zeros(cost.shape[1])
        m = -cost / 0.1
        for _ in range(iterations):
            u = -torch.logsumexp(m + v[None, :], dim=1)
            v = -torch.logsumexp(m + u[:, None], dim=0)
        return torch.exp(m + u[:, None] + v[None, :])

    return sinkhorn, (torch.rand(32, 32),)


def _warping(length: int) -> Program:
    """Dynamic time warping of two batches of sequences, entry by entry."""

    def dtw(x: Tensor, y: Tensor) -> Tensor:
        cost = (x[:, :, None] - y[:, None, :]).abs()
        n, m = cost.shape[1:]
        best = torch.full((cost.shape[0], n + 1, m + 1), float("inf"))
        best[:, 0, 0] = 0
        for i in range(n):
            for j in range(m):
                least = torch.minimum(torch.minimum(best[:, i, j + 1], best[:, i + 1, j]), best[:, i, j])
                best[:, i + 1, j + 1] = cost[:, i, j] + least
        return best[:, n, m]

    return dtw, (torch.randn(4, length), torch.randn(4, length))


def _viterbi(steps: int) -> Program:
    """The best path of a chain: maxima forward, indices backward."""

    def viterbi(emissions: Tensor, transitions: Tensor) -> tuple[Tensor, Tensor]:
        score = emissions[0]
        history = []
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

    return viterbi, (torch.randn(steps, 4, 12), torch.randn(12, 12))


def _crf(steps: int) -> Program:
    """The negative log likelihood's normaliser of a linear chain."""

    def partition(emissions: Tensor, transitions: Tensor) -> Tensor:
        score = emissions[0]
        for t in range(1, emissions.shape[0]):
            score = torch.logsumexp(score[:, :, None] + transitions, dim=1) + emissions[t]
        return torch.logsumexp(score, dim=1).sum()

    return partition, (torch.randn(steps, 4, 12), torch.randn(12, 12).requires_grad_())


def _memory(steps: int) -> Program:
    """A memory that learns at test time: the gradient of its own loss in every step, with momentum."""
    keys = nn.Linear(16, 16, bias=False)

    def run(x: Tensor, w: Tensor) -> Tensor:
        momentum = torch.zeros_like(w)
        found = []
        for t in range(x.shape[0]):
            k = keys(x[t])
            error = F.silu(k @ w) - x[t]
            gradient = torch.func.grad(lambda w, k=k, t=t: ((k @ w).sigmoid() - x[t]).square().sum())(w)
            momentum = 0.9 * momentum - 0.01 * gradient
            w = 0.99 * w + momentum
            found.append(error @ w)
        return torch.stack(found)

    return run, (torch.randn(steps, 4, 16), torch.randn(16, 16))


def _diffusion(steps: int) -> Program:
    """Sampling with a small network: DDPM steps, the noise given."""
    net = nn.Sequential(nn.Linear(17, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 16))
    beta = torch.linspace(1e-4, 0.02, steps)
    alpha = 1 - beta
    product = torch.cumprod(alpha, 0)

    def sample(x: Tensor, added: Tensor) -> Tensor:
        for t in reversed(range(steps)):
            time = torch.full((x.shape[0], 1), t / steps)
            noise = net(torch.cat([x, time], dim=1))
            x = (x - beta[t] / torch.sqrt(1 - product[t]) * noise) / torch.sqrt(alpha[t])
            if t > 0:
                x = x + torch.sqrt(beta[t]) * added[t]
        return x

    return sample, (torch.randn(8, 16), torch.randn(steps, 8, 16))


def _float_schedule(steps: int) -> Program:
    """DDIM steps with a small network, the schedule and the times as Python floats."""
    net = nn.Sequential(nn.Linear(17, 64), nn.SiLU(), nn.Linear(64, 16))
    product = [math.cos(0.5 * math.pi * (t + 0.5) / (steps + 1)) ** 2 for t in range(steps + 1)]

    def sample(x: Tensor) -> Tensor:
        for t in reversed(range(steps)):
            a, b = product[t + 1], product[t]
            noise = net(torch.cat([x, torch.full((x.shape[0], 1), (t + 1) / steps)], dim=1))
            clean = (x - (1 - a) ** 0.5 * noise) / a**0.5
            x = b**0.5 * clean.clamp(-3, 3) + (1 - b) ** 0.5 * noise
        return x

    return sample, (torch.randn(8, 16),)


def _runge_kutta(steps: int) -> Program:
    """Steps of the classical Runge-Kutta method for a driven oscillator, the time a Python float."""

    def slope(t: float, y: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(y @ w) + math.sin(t) - 0.1 * t * y

    def solve(y: Tensor, w: Tensor) -> Tensor:
        h = 1.0 / steps
        for n in range(steps):
            t = n * h
            k1 = slope(t, y, w)
            k2 = slope(t + h / 2, y + h / 2 * k1, w)
            k3 = slope(t + h / 2, y + h / 2 * k2, w)
            k4 = slope(t + h, y + h * k3, w)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return y

    return solve, (torch.randn(8, 16), torch.randn(16, 16) / 4)


def _descent(steps: int) -> Program:
    """Gradient descent on a linear model, the learning rate warmed up and then decaying as a cosine."""

    def fit(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        for t in range(steps):
            rate = 0.1 * min((t + 1) / 20, 0.5 * (1 + math.cos(math.pi * t / steps)))
            gradient = x.T @ (torch.sigmoid(x @ w) - y) / x.shape[0]
            w = w - rate * (gradient + 0.01 * w)
        return w

    return fit, (torch.randn(16, 4), torch.randn(32, 16), torch.rand(32, 4))


SCENARIOS: Mapping[str, Scenario] = {
    "filter": Scenario(_filter, (250, 1000, 16000)),
    "recurrent": Scenario(_recurrent, (500, 2000, 5000)),
    "recurrent training": Scenario(_recurrent, (200, 1000), trains=True),
    "neural ode": Scenario(_ode, (500, 2000)),
    "neural ode training": Scenario(_ode, (200, 1000), trains=True),
    "pointwise ode": Scenario(_pointwise_ode, (500, 2000)),
    "sinkhorn": Scenario(_sinkhorn, (200, 1000)),
    "warping": Scenario(_warping, (16, 64)),
    "viterbi": Scenario(_viterbi, (128, 512)),
    "crf training": Scenario(_crf, (128, 512), trains=True),
    "memory": Scenario(_memory, (64, 512)),
    "diffusion": Scenario(_diffusion, (200, 1000)),
    "float schedule": Scenario(_float_schedule, (50, 200, 1000)),
    "runge kutta": Scenario(_runge_kutta, (50, 200, 1000)),
    "descent": Scenario(_descent, (50, 200, 1000)),
}
