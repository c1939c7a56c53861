"""Remainders of floats on whole vectors: exact, as the C library's, whatever the quotient."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from aten_capture import capture

from treadle_codegen import compile_graph
from treadle_codegen.options import CodegenOptions

SPECIAL = [0.0, -0.0, 1.0, -1.0, 3.0, 0.1, 1e-40, -1e-310, 1e30, -1e300, 7e-20, math.inf, -math.inf, math.nan]


def pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Every special value with every other one, exact multiples with their neighbours, and quotients of all sizes."""
    torch.manual_seed(0)
    special = torch.cartesian_prod(*[torch.tensor(SPECIAL, dtype=torch.float64)] * 2)
    divisors = torch.randn(4000, dtype=torch.float64)
    multiples = (divisors.to(dtype).double() * torch.randint(1, 1 << 20, (4000,))).to(dtype)
    near = torch.nextafter(multiples, torch.zeros_like(multiples))
    sizes = torch.randn(4000, dtype=torch.float64) * 10.0 ** torch.randint(-30, 30, (4000,))
    x = torch.cat([special[:, 0].to(dtype), multiples, near, sizes.to(dtype), -multiples])
    y = torch.cat([special[:, 1], divisors, divisors, divisors, divisors]).to(dtype)
    return x, y


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=lambda t: str(t)[6:])
def test_fmod_is_exact(dtype: torch.dtype, tmp_path: Path) -> None:
    x, y = pairs(dtype)
    graph = compile_graph(capture(torch.fmod, (x, y)), (x, y), options=CodegenOptions(cache_dir=tmp_path, threads=1))
    (found,) = graph(x, y)
    exact = [
        math.fmod(a, b) if math.isfinite(a) and b != 0 else math.nan
        for a, b in zip(x.tolist(), y.tolist(), strict=True)
    ]
    exact = torch.tensor(exact, dtype=torch.float64).to(dtype)
    torch.testing.assert_close(found, exact, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found.signbit()[~found.isnan()], exact.signbit()[~exact.isnan()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=lambda t: str(t)[6:])
@pytest.mark.parametrize("length", [3, 8, 37])
def test_remainder_and_floor_division_as_in_eager(dtype: torch.dtype, length: int) -> None:
    x, y = torch.randn(length, dtype=dtype) * 50, torch.randn(length, dtype=dtype)
    y[0] = 0

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x % y, x // y, x % 6.28, x // -0.3

    for found, expected in zip(compile_graph(capture(function, (x, y)), (x, y))(x, y), function(x, y), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6, equal_nan=True)


def test_remainder_in_a_branch() -> None:
    x = torch.randn(100) * 5
    function = lambda x: torch.where(x > 0, x % 0.7, x)  # noqa: E731
    (found,) = compile_graph(capture(function, (x,)), (x,))(x)
    torch.testing.assert_close(found, function(x))
