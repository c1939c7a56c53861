"""Programs that multiply small matrices: one graph each, as close to float64 as eager is, with gradients, at several sizes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import treadle

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from small_products import ARGUMENTS, covariances, filter_step, joints, projection, rotations  # noqa: E402

Arguments = tuple[torch.Tensor, ...]


def _recursion(x: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """A linear system over time: products with a matrix and a vector, and dots."""
    total = torch.zeros(())
    for step in steps:
        x = step @ x / (1 + x.dot(x))
        total = total + x @ x
    return total + x.sum()


def _contraction(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.einsum("bi,iok,bk->bo", x, w, y).relu()


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int], Arguments]]] = {
    "rotations": (rotations, lambda n: (torch.randn(n, 3),)),
    "joints": (joints, ARGUMENTS["joints"]),
    "projection": (projection, ARGUMENTS["projection"]),
    "covariances": (covariances, ARGUMENTS["covariances"]),
    "filter": (lambda *args: filter_step(*args)[1], ARGUMENTS["Kalman filter"]),
    "recursion": (_recursion, lambda n: (torch.randn(5), torch.randn(4, 5, 5))),
    "contraction": (_contraction, lambda n: (torch.randn(n, 5), torch.randn(5, 6, 7), torch.randn(n, 7))),
}


def _with_gradients(function: Callable[..., Any], arguments: Arguments) -> list[torch.Tensor]:
    given = [x.clone().requires_grad_() for x in arguments]
    result = function(*given)
    gradients = torch.autograd.grad(result.square().sum(), given, allow_unused=True)
    return [result.detach(), *[gradient for gradient in gradients if gradient is not None]]


def _assert_as_close_as_eager(found: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> None:
    assert (found.shape, found.dtype, found.stride()) == (eager.shape, eager.dtype, eager.stride())
    error, eager_error = [(x.double() - exact).abs().max() for x in (found, eager)]
    assert error <= 10 * eager_error + 64 * torch.finfo(torch.float32).eps * exact.abs().max()


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("with_gradients", [False, True], ids=["inference", "gradients"])
def test_as_close_to_float64_as_eager(name: str, with_gradients: bool) -> None:
    program, inputs = PROGRAMS[name]
    compiled = treadle.compile(program, fullgraph=True)
    for n in (7, 12, 2, 300):
        torch.manual_seed(n)
        given = inputs(n)
        exact = tuple([x.double() for x in given])
        torch.set_default_dtype(torch.float64)  # of the constants that programs make
        try:
            reference = _with_gradients(program, exact)
        finally:
            torch.set_default_dtype(torch.float32)
        if with_gradients:
            for triple in zip(
                _with_gradients(compiled, given), _with_gradients(program, given), reference, strict=True
            ):
                _assert_as_close_as_eager(*triple)
        else:
            with torch.no_grad():
                _assert_as_close_as_eager(compiled(*given), program(*given), reference[0])
