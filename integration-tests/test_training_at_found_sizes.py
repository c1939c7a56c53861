"""Gradients of operators on rows that only the data can tell: one graph for all their numbers, and eager's gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)

import treadle

SCALE = torch.linspace(0.5, 1.5, 4)
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "asin": torch.asin,
    "asinh": torch.asinh,
    "atan": torch.atan,
    "atanh": torch.atanh,
    "cumsum over them": lambda x: x.cumsum(0),
    "cumsum of each": lambda x: x.cumsum(-1),
    "cumprod of each": lambda x: x.cumprod(-1),
    "cumprod with zeros": lambda x: (x * torch.tensor([1.0, 0.0, 2.0, 0.0])).cumprod(-1),
    "logcumsumexp over them": lambda x: x.logcumsumexp(0),
    "logcumsumexp of each": lambda x: x.logcumsumexp(-1),
    "expm1": torch.expm1,
    "log1p": torch.log1p,
    "logaddexp": lambda x: torch.logaddexp(x, x * x),
    "power of a number": lambda x: 2**x,
    "rms norm": lambda x: F.rms_norm(x, (4,), SCALE),
    "sigmoid": torch.sigmoid,
    "tan": torch.tan,
}


@pytest.mark.parametrize("backend", ["codegen", "aot_eager"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name: str, backend: str) -> None:
    def program(x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        return (FUNCTIONS[name](x[kept]) * SCALE).sum()

    treadle.reset()
    with treadle.config.patch(raise_internal_errors=True, leave_unprofitable=False):
        compiled = treadle.compile(program, fullgraph=True, backend=backend)
        for kept in ([1, 0, 1, 1, 0], [1] * 5, [0, 0, 0, 1, 0], [0] * 5):
            gradients = []
            for function in (compiled, program):
                x = torch.linspace(-0.9, 0.9, 20).view(5, 4).requires_grad_()
                function(x, torch.tensor(kept).bool()).backward()
                gradients.append(x.grad)
            torch.testing.assert_close(*gradients)
        assert treadle.stats().graphs == 1
        assert treadle.stats().eager_graphs == ()
