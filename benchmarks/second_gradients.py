"""Training steps that differentiate gradients: a gradient penalty (WGAN-GP) and a force field, Treadle beside eager.

    python benchmarks/second_gradients.py                  to benchmarks/results/second_gradients.json

inside   the function that calls `torch.autograd.grad(create_graph=True)` is compiled
outside  only the model is compiled; the caller differentiates what it returns (torch.compile raises there)

step     seconds of loss and backward, both variants in one process on one thread, calls interleaved, medians
error    the largest |gradient - eager's| of a parameter over the largest of all gradients
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import machine  # noqa: E402
from markdown_table import markdown  # noqa: E402

DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "second_gradients.json"
PLACES = ("inside", "outside")


class Critic(nn.Sequential):
    """A score for each image of 32 x 32."""

    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(3, 32, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(32, 64, 3, 2, 1)),
            *(nn.InstanceNorm2d(64, affine=True), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(64 * 64, 1)),
        )


def penalised_loss(critic: Callable[..., Any], real: Any, fake: Any, between: Any) -> torch.Tensor:
    """The loss of a critic with the penalty of Gulrajani et al. 2017."""
    x = (between * real + (1 - between) * fake).requires_grad_()
    (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    penalty = ((slope.flatten(1).norm(2, 1) - 1) ** 2).mean()
    return critic(fake).mean() - critic(real).mean() + 10 * penalty  # type: ignore[no-any-return]


class Energy(nn.Module):
    """The energy of atoms from radial basis functions of their distances."""

    centres: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
        self.of_pair = nn.Sequential(*layers)
        self.register_buffer("centres", torch.linspace(0, 4, 32))

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        distances = (positions[:, :, None] - positions[:, None]).square().sum(-1).add(1e-6).sqrt()
        return self.of_pair(torch.exp(-((distances[..., None] - self.centres) ** 2))).squeeze(-1).sum((1, 2))


def loss_of_forces(energy: Callable[..., Any], positions: Any, energies: Any, forces: Any) -> torch.Tensor:
    found = energy(positions)
    (slope,) = torch.autograd.grad(found.sum(), positions, create_graph=True)
    return (found - energies).square().mean() + (slope + forces).square().mean()  # type: ignore[no-any-return]


def gradient_penalty() -> tuple[nn.Module, Callable[..., Any], tuple[Any, ...]]:
    return Critic(), penalised_loss, (torch.randn(64, 3, 32, 32), torch.randn(64, 3, 32, 32), torch.rand(64, 1, 1, 1))


def force_field() -> tuple[nn.Module, Callable[..., Any], tuple[Any, ...]]:
    return Energy(), loss_of_forces, (torch.randn(8, 24, 3).requires_grad_(), torch.randn(8), torch.randn(8, 24, 3))


CASES = {"gradient penalty": gradient_penalty, "force field": force_field}


def compare(case: str, place: str, seconds: float) -> dict[str, Any]:
    """The figures of one case, with the compiled function inside or outside of the differentiation."""
    import treadle

    torch.manual_seed(0)
    treadle.reset()
    model, loss, inputs = CASES[case]()
    twin = copy.deepcopy(model)
    fast = (treadle.compile(loss), twin) if place == "inside" else (loss, treadle.compile(twin))

    def step(function: Callable[..., Any], owner: Any, parameters: list[nn.Parameter]) -> float:
        for parameter in parameters:
            parameter.grad = None
        begin = time.perf_counter()
        function(owner, *inputs).backward()
        return time.perf_counter() - begin

    mine, theirs = list(twin.parameters()), list(model.parameters())
    first = step(*fast, mine)
    step(loss, model, theirs)
    largest = max(p.grad.abs().max() for p in theirs)  # type: ignore[union-attr]
    error = max((p.grad - q.grad).abs().max() for p, q in zip(mine, theirs, strict=True))  # type: ignore[operator]
    times: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        times.append((step(loss, model, theirs), step(*fast, mine)))
    eager, treadles = (statistics.median(each) for each in zip(*times, strict=True))
    stats = treadle.stats()
    found = {"eager": eager, "treadle": treadles, "first": first, "error": float(error / largest)}
    return {**found, "graphs": stats.graphs, "breaks": len(stats.breaks), "eager graphs": len(stats.eager_graphs)}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="for each case")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="where the JSON goes")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    cases = {f"{case}, {place}": compare(case, place, options.seconds) for case in CASES for place in PLACES}
    command = " ".join(["python benchmarks/second_gradients.py", *arguments])
    results = {"command": command, "machine": machine.describe(), "cases": cases}
    options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    headings = [
        "",
        "eager, ms",
        "Treadle, ms",
        "faster than eager",
        "first step, s",
        "error",
        "graphs / breaks / eager",
    ]
    rows = [
        [name, f"{1e3 * row['eager']:.2f}", f"{1e3 * row['treadle']:.2f}", f"{row['eager'] / row['treadle']:.2f} ×"]
        + [f"{row['first']:.2f}", f"{row['error']:.0e}", f"{row['graphs']} / {row['breaks']} / {row['eager graphs']}"]
        for name, row in cases.items()
    ]
    print(markdown(headings, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
