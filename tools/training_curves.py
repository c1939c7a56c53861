"""Losses of training steps in eager and compiled, from the same weights and random state.

The whole step (forward, loss, backward, clipping of gradients, optimizer) is one function. Eager runs twice; the second time the weights
start one rounding apart, which is how far two correct runs drift away from each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import zoo

OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, 1e-3, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, 1e-4),
}
# Batch norm of one image in a network that ends in a single pixel divides by a variance of nothing.
IMAGES_PER_STEP = 2


def training_step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, inputs: Mapping[str, Any]
) -> Callable[[], torch.Tensor]:
    """A function that trains for one step and returns the loss: the mean square of the first floating-point output."""

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = next(t for t in zoo.tensors_of(model(**inputs)) if t.is_floating_point()).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


def curve(
    name: str, optimizer: str, steps: int, compiler: Callable[[Any], Any], noise: float = 0.0
) -> tuple[list[float], torch.Tensor]:
    """The losses, and a random number drawn after the last step. noise: relative change of the weights at the start."""
    scenario = zoo.SCENARIOS[name]
    model = scenario.build().train()
    with torch.no_grad():
        for parameter in model.parameters() if noise else ():
            parameter.mul_(1 + noise * torch.randint_like(parameter, -1, 2))
    inputs = scenario.inputs(IMAGES_PER_STEP if scenario.library == "timm" else 1)
    run = compiler(training_step(model, OPTIMIZERS[optimizer](model.parameters()), inputs))
    torch.manual_seed(7)
    return [run().item() for _ in range(steps)], torch.rand(1)


def deviation(found: Sequence[float], expected: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(found, expected, strict=True)) / max(map(abs, expected))


def compare(name: str, optimizer: str, steps: int) -> dict[str, Any]:
    import treadle

    expected, their_random = curve(name, optimizer, steps, lambda step: step)
    again, _ = curve(name, optimizer, steps, lambda step: step, noise=6e-8)
    treadle.reset()
    found, my_random = curve(name, optimizer, steps, treadle.compile)
    stats = treadle.stats()
    return {
        "eager": expected,
        "eager again": again,
        "treadle": found,
        "deviation": deviation(found, expected),
        "deviation of eager again": deviation(again, expected),
        "masks": bool(torch.equal(their_random, my_random)),
        "graphs": stats.graphs,
        "breaks": [found.code for found in stats.breaks],
        "eager graphs": [str(found) for found in stats.eager_graphs],
    }
