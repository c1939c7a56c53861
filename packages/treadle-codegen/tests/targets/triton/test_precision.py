"""Where kernels may use approximations of functions: only what is rounded to 16 bits afterwards depends on them, and smoothly."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from aten_capture import capture

from treadle_codegen.lower.program import lower_graph

pytest.importorskip("triton")
from treadle_codegen.targets.triton.precision import program_may_approximate  # noqa: E402
from treadle_codegen.targets.triton.target import COSTS, TRITON  # noqa: E402

LOW = [torch.bfloat16, torch.float16]
SMOOTH: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sigmoid": lambda x: torch.sigmoid(x) * x,
    "softmax": lambda x: torch.softmax(x, -1),
    "quotient": lambda x: x / (x * x + 1),
    "summed in float32": lambda x: x.float().exp().sum(0).to(x.dtype),
    "chosen by what was read": lambda x: torch.where(x > 0, x.exp(), x),
}
NOT_SMOOTH: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "compared": lambda x: (x.exp() > 1).to(x.dtype),
    "chosen by it": lambda x: torch.where(x.exp() > 1, x, -x),
    "rounded to whole numbers": lambda x: x.exp().round(),
    "converted": lambda x: x.exp().int(),
    "position": lambda x: x.exp().argmax(-1),
    "stored in float32": lambda x: x.float().exp(),
    "power": lambda x: x.float().exp().pow(30.0).to(x.dtype),
    "remainder": lambda x: x.float().exp().remainder(0.5).to(x.dtype),
    "product of float32": lambda x: (x.float().exp() @ x.float().t()).to(x.dtype),
    "angle": lambda x: (x.float() * 10).exp().sin().to(x.dtype),
}


def may_approximate(fn: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> bool:
    return program_may_approximate(lower_graph(capture(fn, [x]), [x], COSTS, TRITON.dtypes, None))


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", SMOOTH)
def test_what_is_rounded_may_be_approximated(name: str, dtype: torch.dtype) -> None:
    assert may_approximate(SMOOTH[name], torch.randn(8, 64).to(dtype))


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", NOT_SMOOTH)
def test_what_shows_is_exact(name: str, dtype: torch.dtype) -> None:
    assert not may_approximate(NOT_SMOOTH[name], torch.randn(8, 64).to(dtype))


@pytest.mark.parametrize("name", SMOOTH)
def test_float32_is_exact(name: str) -> None:
    assert not may_approximate(SMOOTH[name], torch.randn(8, 64))
