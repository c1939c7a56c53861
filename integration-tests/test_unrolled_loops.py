"""Loops that unroll into large graphs: right values, and kernels whose number does not grow with the steps."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import treadle

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from unrolled_programs import SCENARIOS  # noqa: E402


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


FEW_STEPS = {name: 10 if name == "warping" else 40 for name in SCENARIOS}
# Autograd refuses programs that write over what they have read.
TRAINED = ["recurrent", "neural ode", "sinkhorn", "viterbi", "memory", "float schedule", "runge kutta", "descent"]


def check(name: str, steps: int, trains: bool) -> None:
    torch.manual_seed(1)
    program, given = SCENARIOS[name].build(steps)

    def run(function: Callable[..., Any]) -> list[Tensor]:
        args = [a.detach().clone().requires_grad_(trains) for a in given]
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
            torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


def counts_of(name: str, trains: bool, kernels: Kernels) -> list[int]:
    counts = []
    for steps in (FEW_STEPS[name], 2 * FEW_STEPS[name]):
        treadle.reset()
        kernels.count = 0
        check(name, steps, trains)
        assert not treadle.stats().breaks
        counts.append(kernels.count)
    assert counts[0] > 0
    return counts


@pytest.mark.parametrize("name", [name for name in SCENARIOS if not SCENARIOS[name].trains])
def test_kernels_of_unrolled_loops(name: str, kernels: Kernels) -> None:
    few, many = counts_of(name, False, kernels)
    assert many <= few + 6  # how the last kernels end depends on the number of steps


@pytest.mark.parametrize("name", TRAINED)
def test_kernels_of_unrolled_loops_in_training(name: str, kernels: Kernels) -> None:
    few, many = counts_of(name, True, kernels)
    assert many <= few + FEW_STEPS[name] // 3  # sums of gradients over steps join kernels that begin at different steps


def test_a_loop_that_is_too_long_is_left_to_python_with_its_reason() -> None:
    program, args = SCENARIOS["filter"].build(4000)
    compiled = treadle.compile(program)
    torch.testing.assert_close(compiled(*args), program(*args))
    (skip,) = treadle.stats().skipped
    assert "operations" in str(skip)
    assert treadle.stats().graphs == 0
