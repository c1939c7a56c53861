"""Whole training steps in one compiled function: forward, loss, backward, clipping, optimizer and `zero_grad`, against eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import treadle

STEPS = 20

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "adamw foreach": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=True),
}


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.2), nn.LayerNorm(16), nn.Linear(16, 3))


def convolutions() -> nn.Module:
    return nn.Sequential(
        *(nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)),
        *(nn.ReLU(inplace=True), nn.Dropout2d(0.1), nn.Flatten(), nn.Linear(48, 3)),
    )


class Tied(nn.Module):
    """Two layers share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.gelu(self.second(F.gelu(self.first(x)))))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)


def run(build: Callable[[], nn.Module], make: Callable[..., Any], compiled: bool, **options: Any) -> dict[str, Any]:
    """Losses, the model's state and the optimizer's after `STEPS` steps with the same seeds."""
    torch.manual_seed(0)
    model = build()
    optimizer = make(model.parameters())

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if options.get("zero") == "before":
            optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if options.get("clip"):
            torch.nn.utils.clip_grad_norm_(model.parameters(), options["clip"])
        optimizer.step()
        if options.get("zero") != "before":
            optimizer.zero_grad()
        return loss

    call = treadle.compile(step) if compiled else step
    losses = []
    for k in range(STEPS):
        torch.manual_seed(k)
        losses.append(call(*batch(k)).detach().clone())
    numbers = {f"state {k}": v for k, v in model.state_dict().items()}
    gradients = [None if p.grad is None else p.grad for p in model.parameters()]
    return {"losses": losses, **numbers, "gradients": gradients, "drawn": torch.rand(3)}


@pytest.mark.parametrize("clip", [None, 0.5], ids=["", "clipped"])
@pytest.mark.parametrize("zero", ["before", "after"])
@pytest.mark.parametrize("name", list(OPTIMIZERS))
@pytest.mark.parametrize("build", [dense, convolutions, Tied])
def test_a_whole_step_is_one_graph(build, name, zero, clip):
    expected = run(build, OPTIMIZERS[name], False, zero=zero, clip=clip)
    found = run(build, OPTIMIZERS[name], True, zero=zero, clip=clip)
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-5)
    stats = treadle.stats()
    assert stats.graphs <= 3
    assert not stats.breaks
    assert not stats.eager_graphs


def test_a_closure():
    def trained(compiled: bool) -> tuple[nn.Module, list[float]]:
        torch.manual_seed(0)
        model = dense().eval()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            def closure() -> torch.Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            return optimizer.step(closure)

        call = treadle.compile(step) if compiled else step
        return model, [call(*batch(k)).item() for k in range(6)]

    (expected, losses), (found, others) = trained(False), trained(True)
    assert others == pytest.approx(losses, rel=1e-4)
    torch.testing.assert_close(found.state_dict(), expected.state_dict(), rtol=1e-4, atol=1e-5)
    assert not treadle.stats().breaks


def test_gradients_are_accumulated_over_calls():
    """Every second call steps: two paths, each compiled for missing and for present gradients."""

    def trained(compiled: bool) -> nn.Module:
        torch.manual_seed(0)
        model = dense().eval()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

        def step(x: torch.Tensor, y: torch.Tensor, last: bool) -> None:
            (F.cross_entropy(model(x), y) / 2).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()

        call = treadle.compile(step) if compiled else step
        for k in range(8):
            call(*batch(k), k % 2 == 1)
        return model

    torch.testing.assert_close(trained(True).state_dict(), trained(False).state_dict(), rtol=1e-4, atol=1e-5)
    assert treadle.stats().graphs <= 3
    assert not treadle.stats().breaks


def test_an_averaged_copy_follows():
    def trained(compiled: bool) -> tuple[nn.Module, nn.Module]:
        torch.manual_seed(0)
        model = dense().eval()
        average = copy.deepcopy(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: torch.Tensor, y: torch.Tensor) -> None:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            with torch.no_grad():
                for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
                    mine.lerp_(theirs, 0.1)

        call = treadle.compile(step) if compiled else step
        for k in range(6):
            call(*batch(k))
        return model, average

    for found, expected in zip(trained(True), trained(False), strict=True):
        torch.testing.assert_close(found.state_dict(), expected.state_dict(), rtol=1e-4, atol=1e-5)
    assert not treadle.stats().breaks


def test_gradient_penalty():
    """The gradient with respect to the input, differentiated again."""

    def trained(compiled: bool) -> tuple[nn.Module, list[torch.Tensor]]:
        torch.manual_seed(0)
        critic = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizer = torch.optim.Adam(critic.parameters(), lr=0.01)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            x = x.clone().requires_grad_()
            (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
            penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
            penalty.backward()
            optimizer.step()
            return penalty

        call = treadle.compile(step) if compiled else step
        return critic, [call(batch(k)[0]).detach() for k in range(STEPS)]

    (expected, penalties), (found, others) = trained(False), trained(True)
    torch.testing.assert_close(others, penalties, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.state_dict(), expected.state_dict(), rtol=1e-3, atol=1e-4)
    assert treadle.stats().graphs <= 2
    assert not treadle.stats().breaks
    assert not treadle.stats().eager_graphs


def test_a_penalty_differentiated_outside():
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))

    def penalty(x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
        return ((slope.norm(dim=1) - 1) ** 2).mean()

    compiled = treadle.compile(penalty)
    for k in range(3):
        x = batch(k)[0]
        expected = torch.autograd.grad(penalty(x), list(critic.parameters()), allow_unused=True)
        found = torch.autograd.grad(compiled(x), list(critic.parameters()), allow_unused=True)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert treadle.stats().graphs == 1
    assert not treadle.stats().breaks


def test_an_inner_step_that_is_differentiated():
    """The first step of MAML: gradients of a loss after a step, through the step."""

    def trained(compiled: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        weights = [nn.Parameter(torch.randn(6, 16) * 0.3), nn.Parameter(torch.randn(16, 3) * 0.3)]
        optimizer = torch.optim.SGD(weights, lr=0.1)

        def loss(x: torch.Tensor, y: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(torch.tanh(x @ first) @ second, y)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            gradients = torch.autograd.grad(loss(x[:4], y[:4], *weights), weights, create_graph=True)
            fast = [w - 0.5 * g for w, g in zip(weights, gradients, strict=True)]
            outer = loss(x[4:], y[4:], *fast)
            outer.backward()
            optimizer.step()
            return outer

        call = treadle.compile(step) if compiled else step
        return [*(call(*batch(k)).detach() for k in range(6)), *(w.detach() for w in weights)]

    torch.testing.assert_close(trained(True), trained(False), rtol=1e-4, atol=1e-5)
    assert treadle.stats().graphs <= 2
    assert not treadle.stats().breaks


@pytest.mark.parametrize("grad_mode", [torch.enable_grad, torch.no_grad])
def test_forces_at_inference(grad_mode):
    """force = -grad(energy, positions), with frozen weights: one graph."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.SiLU(), nn.Linear(16, 1)).requires_grad_(False)

    def forces(positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad():
            positions = positions.detach().requires_grad_()
            distances = positions.unsqueeze(0) - positions.unsqueeze(1)
            energy = model(distances).sum()
            (slope,) = torch.autograd.grad(energy, positions)
        return energy.detach(), -slope

    compiled = treadle.compile(forces)
    with grad_mode():
        for k in range(3):
            positions = batch(k)[0][:, :3].contiguous()
            torch.testing.assert_close(compiled(positions), forces(positions), rtol=1e-4, atol=1e-5)
    stats = treadle.stats()
    assert stats.graphs == 1
    assert not stats.breaks
    assert not stats.eager_graphs


class Stream(nn.Module):
    """Convolutions over a stream that comes in parts: each keeps the end of what it has read, detached from its history."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Conv1d(2, 8, 3), nn.Conv1d(8, 8, 3, dilation=2), nn.Conv1d(8, 1, 3, dilation=4)]
        )
        self.ends: list[torch.Tensor] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ends = []
        for k, layer in enumerate(self.layers):
            width = 2**k * 2
            before = x.new_zeros(x.shape[0], x.shape[1], width) if self.ends is None else self.ends[k]
            whole = torch.cat([before, x], -1)
            ends.append(whole[..., -width:].detach())
            x = F.elu(layer(whole))
        self.ends = ends
        return x


@pytest.mark.parametrize("trains", [False, True])
def test_the_state_of_a_stream(trains: bool) -> None:
    torch.manual_seed(0)
    eager = Stream()
    parts = [torch.randn(1, 2, n) for n in (10, 10, 11, 13, 12, 10)]
    results = []
    for stream in (eager, treadle.compile(copy.deepcopy(eager))):
        found: list[torch.Tensor] = []
        for part in parts:
            with torch.set_grad_enabled(trains):
                found.append(stream(part))
            if trains:
                found.extend(torch.autograd.grad(found[-1].square().sum(), list(stream.parameters())))
        ends = stream.ends
        results.append((found, ends, [(t.requires_grad, t.stride(), t.untyped_storage().nbytes()) for t in ends]))
    for mine, theirs in zip(results[1][0] + results[1][1], results[0][0] + results[0][1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert results[0][2] == results[1][2]
    assert [graph.reason for graph in treadle.stats().eager_graphs] == []
