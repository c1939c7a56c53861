"""Programs that multiply small matrices: eager, Treadle and torch.compile side by side.

    python benchmarks/small_products.py                           all programs, to benchmarks/results/small_products.json
    python benchmarks/small_products.py --programs projection --no-torch

Rotations of points, kinematics, filters, policies for a few observations. Every program runs on one thread in a process of its own, in
which the calls of the variants are interleaved. A figure is the median of the processor's microseconds of one call; results are compared
with eager's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import single_programs  # noqa: E402

DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "small_products.json"
UNTIMED, TIMED = 20, 200


def rotations(axes: torch.Tensor) -> torch.Tensor:
    """Rotations [n, 3, 3] about vectors [n, 3] by as many radians as these are long (Rodrigues' formula)."""
    angle = axes.norm(dim=-1, keepdim=True) + 1e-8
    x, y, z = (axes / angle).unbind(-1)
    zero = torch.zeros_like(x)
    cross = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).view(-1, 3, 3)
    sine, cosine = angle.sin()[..., None], angle.cos()[..., None]
    return torch.eye(3) + sine * cross + (1 - cosine) * (cross @ cross)


def joints(axes: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Transformations [n, 24, 4, 4] of the joints of a tree, each relative to its parent in the arguments."""
    turned = rotations(axes.view(-1, 3)).view(-1, 24, 3, 3)
    batch = turned.shape[0]
    upper = torch.cat([turned, offsets.expand(batch, 24, 3)[..., None]], -1)
    local = torch.cat([upper, torch.tensor([0.0, 0.0, 0.0, 1.0]).expand(batch, 24, 1, 4)], -2)
    found = [local[:, 0]]
    for joint in range(1, 24):
        found.append(found[(joint - 1) // 2] @ local[:, joint])
    return torch.stack(found, 1)


def projection(points: torch.Tensor, rotation: torch.Tensor, shift: torch.Tensor, camera: torch.Tensor) -> torch.Tensor:
    image = (points @ rotation.transpose(-1, -2) + shift) @ camera.T
    return image[..., :2] / image[..., 2:]


def covariances(quaternions: torch.Tensor, scales: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Covariances [n, 2, 2] of Gaussians in the plane of an image."""
    r, x, y, z = F.normalize(quaternions).unbind(-1)
    rows = [1 - 2 * (y * y + z * z), 2 * (x * y - r * z), 2 * (x * z + r * y)]
    rows += [2 * (x * y + r * z), 1 - 2 * (x * x + z * z), 2 * (y * z - r * x)]
    rows += [2 * (x * z - r * y), 2 * (y * z + r * x), 1 - 2 * (x * x + y * y)]
    axes = torch.stack(rows, -1).view(-1, 3, 3) @ torch.diag_embed(scales.exp())
    depth, zero = points[:, 2], torch.zeros(len(points))
    view = torch.stack([1 / depth, zero, -points[:, 0] / depth**2, zero, 1 / depth, -points[:, 1] / depth**2], -1)
    view = view.view(-1, 2, 3)
    return view @ (axes @ axes.transpose(1, 2)) @ view.transpose(1, 2)


def filter_step(x: torch.Tensor, p: torch.Tensor, z: torch.Tensor, *model: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A step of a Kalman filter."""
    move, see, noise, error = model
    x, p = move @ x, move @ p @ move.T + noise
    gain = p @ see.T @ torch.linalg.inv(see @ p @ see.T + error)
    return x + gain @ (z - see @ x), (torch.eye(len(x)) - gain @ see) @ p


def _policy() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))


ARGUMENTS: dict[str, Callable[[int], tuple[torch.Tensor, ...]]] = {
    "projection": lambda n: (torch.randn(n, 3), torch.eye(3) + 0.1, torch.tensor([0.0, 0, 9]), torch.eye(3)),
    "joints": lambda n: (torch.randn(n, 72), torch.randn(24, 3)),
    "covariances": lambda n: (torch.randn(n, 4), torch.randn(n, 3), torch.rand(n, 3) + 1),
    "Kalman filter": lambda n: (
        *(torch.randn(6), torch.eye(6), torch.randn(3), torch.eye(6)),
        *(torch.randn(3, 6), torch.eye(6), torch.eye(3)),
    ),
    "policy": lambda n: (torch.randn(n, 4),),
}
"""The arguments of programs for so many points, poses, Gaussians or observations."""

PROGRAMS: dict[str, tuple[Callable[[], Callable[..., Any]], str, int]] = {
    "projection": (lambda: projection, "projection", 5000),
    "joints": (lambda: joints, "joints", 32),
    "covariances": (lambda: covariances, "covariances", 5000),
    "Kalman filter": (lambda: filter_step, "Kalman filter", 1),
    "policy, one observation": (_policy, "policy", 1),
    "policy, 32 observations": (_policy, "policy", 32),
}
"""A function or module, whose arguments it takes, and of which size."""


def _call(forward: Callable[..., Any], arguments: tuple[torch.Tensor, ...], trains: bool) -> list[torch.Tensor]:
    """The results; in training the gradients of the sum of their squares for the arguments."""
    if not trains:
        with torch.no_grad():
            results = forward(*arguments)
        return [results] if isinstance(results, torch.Tensor) else [*results]
    given = [x.clone().requires_grad_() for x in arguments]
    results = forward(*given)
    tensors = [results] if isinstance(results, torch.Tensor) else results
    sum(x.square().sum() for x in tensors).backward()  # type: ignore[union-attr]
    return [x.grad for x in given if x.grad is not None]


def measure(name: str, trains: bool, with_torch: bool) -> dict[str, int]:
    """Microseconds of the variants. Raises AssertionError where results differ from eager's."""
    import treadle

    torch.set_num_threads(1)
    torch.manual_seed(0)
    build, arguments, size = PROGRAMS[name]
    program, given = build(), ARGUMENTS[arguments](size)
    variants: dict[str, Callable[..., Any]] = {"eager": program, "treadle": treadle.compile(program)}
    if with_torch:
        variants["torch.compile"] = torch.compile(program)
    return single_programs.interleaved(variants, lambda forward: _call(forward, given, trains), UNTIMED, TIMED, 1e-3)


def main(arguments: Sequence[str]) -> int:
    options = single_programs.parsed(__doc__, PROGRAMS, DEFAULT_OUTPUT, arguments)
    found: dict[str, dict[str, int]] = {}
    for name in options.programs:
        for trains, row in ((False, name), (True, f"{name}, gradients")):
            found[row] = single_programs.in_own_process(measure, name, trains, not options.no_torch)
            print(row, found[row], file=sys.stderr, flush=True)
    single_programs.report(" ".join(["python benchmarks/small_products.py", *arguments]), found, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
