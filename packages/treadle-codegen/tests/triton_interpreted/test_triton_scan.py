"""Running sums and products as Triton kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from aten_capture import capture

from treadle_codegen import compile_graph
from treadle_codegen.targets.triton import tiles


def check(fn: Callable[..., Any], x: torch.Tensor, tolerance: float = 1e-5) -> str:
    compiled = compile_graph(capture(fn, [x]), [x])
    for found, expected in zip(compiled(x), torch.utils._pytree.tree_leaves(fn(x)), strict=True):
        assert found.dtype == expected.dtype and found.stride() == expected.stride()
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    return compiled.source


@pytest.fixture(params=["whole rows", "steps"])
def rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "steps":
        monkeypatch.setattr(tiles, "MAX_ROW", 16)
        monkeypatch.setattr(tiles, "_LOOPED_BLOCK", 32)


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize(("shape", "dim"), [((7,), 0), ((5, 70), 1), ((70, 5), 0), ((3, 40, 33), 1), ((4, 64), 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32, torch.int8])
def test_sums_and_products(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    x = (torch.randn(shape) * 2).to(dtype)
    assert "scan_sum" in check(lambda x: x.cumsum(dim), x)
    check(lambda x: (x.cumsum(dim) * 2 + x, x + 1), x)
    check(lambda x: x.cumprod(dim), x)
    check(lambda x: x.cumsum(dim, dtype=x.dtype), x)


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_numbers_are_added_up_in_float32(dtype: torch.dtype) -> None:
    x = torch.randn(5, 70).to(dtype)
    compiled = compile_graph(capture(lambda x: x.cumsum(1), [x]), [x])
    torch.testing.assert_close(
        compiled(x)[0], x.double().cumsum(1).to(dtype), rtol=2 * torch.finfo(dtype).eps, atol=1e-3
    )


@pytest.mark.usefixtures("rows")
def test_infinity_and_nan_reach_what_follows_them_only() -> None:
    x = torch.randn(3, 70)
    x[0, 20], x[1, 30] = torch.nan, torch.inf
    check(lambda x: x.cumsum(1), x)
    check(lambda x: x.flip(1).cumsum(1).flip(1), x)


@pytest.mark.usefixtures("rows")
def test_reductions_of_running_sums() -> None:
    x = torch.randn(6, 70)
    check(lambda x: (x.cumsum(1) / x.cumsum(1).amax(1, keepdim=True)).sum(1), x, 1e-3)
    check(lambda x: torch.softmax(x, 1).cumsum(1), x)


def test_few_long_rows_are_cut() -> None:
    check(lambda x: x.cumsum(-1), torch.randn(2, 1 << 16, dtype=torch.float64))
    check(lambda x: x.cumsum(0), torch.randn(1 << 13, 4, dtype=torch.float64))
