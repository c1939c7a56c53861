"""Programs that check their tensors and raise: one graph, and eager's exception where a check fails, whatever the backend."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from validating_programs import PROGRAMS

import treadle

DATA = [
    torch.tensor([1.0, 2.0, 3.0]),
    torch.tensor([1.0, -2.0, 3.0]),
    torch.tensor([-7.0, -2.0, -3.0]),
    torch.tensor([1.0, float("inf"), 3.0]),
    torch.tensor([1.0, -2.0, float("nan")]),
    torch.tensor([1.0, 2000.0]),
    torch.tensor([0.5, 2.0, 3.0, 4.0]),
]


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    treadle.reset()
    with treadle.config.patch(raise_internal_errors=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="treadle: the compiled graph")
        yield
    treadle.reset()


def outcome(function: Callable[[Tensor], Tensor], x: Tensor, trains: bool) -> list[Any]:
    x = x.clone().requires_grad_(trains)
    try:
        result = function(x)
    except Exception as error:  # the program's own
        return [type(error), str(error)]
    if trains:
        result.sum().backward()
    return [result.detach(), x.grad]


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("backend", ["codegen", "eager"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_checks_raise_as_in_eager(program: Callable[[Tensor], Tensor], backend: str, trains: bool) -> None:
    for first in (0, 1):  # the first call passes, or fails
        treadle.reset()
        compiled = treadle.compile(program, backend=backend)
        for x in [*DATA[first:], *DATA]:
            expected, found = (outcome(run, x, trains) for run in (program, compiled))
            assert len(found) == len(expected)
            for one, other in zip(found, expected, strict=True):
                if isinstance(other, torch.Tensor):
                    torch.testing.assert_close(one, other, equal_nan=True)
                else:
                    assert one == other
