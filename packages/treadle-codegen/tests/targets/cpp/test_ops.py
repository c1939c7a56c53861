"""Conversions of floats: as in eager, to the last bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from aten_capture import capture
from torch import Tensor

from treadle_codegen import CodegenOptions, compile_graph


def converted(dtype: torch.dtype, x: Tensor, cache: Path) -> tuple[Tensor, Tensor]:
    def there_and_back(x: Tensor) -> Tensor:
        return x.to(dtype).to(x.dtype)

    return compile_graph(capture(there_and_back, [x]), [x], options=CodegenOptions(cache_dir=cache))(x)[
        0
    ], there_and_back(x)


@pytest.mark.parametrize("n", [1, 2, 3, 6, 7, 8, 30, 306])
def test_doubles_are_rounded_to_floats_in_the_last_turns_of_a_loop_too(n: int, tmp_path: Path) -> None:
    # g++ 12 takes (double)(float)x for x there.
    x = torch.linspace(-1, 1, n + 1, dtype=torch.float64)[1:] / 3
    x[0] = -torch.nan
    here, eager = converted(torch.float32, x, tmp_path)
    assert torch.equal(here[1:], eager[1:])
    assert here[0].isnan() and here[0].signbit() == eager[0].signbit()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_doubles_are_rounded_to_floats_on_the_way_to_16_bits(dtype: torch.dtype, tmp_path: Path) -> None:
    half_a_place = torch.finfo(dtype).eps / 2
    x = torch.tensor([1 + half_a_place + 2**-40, 1 + half_a_place + 2**-20, 2 / 3, 1e300, -1e-300], dtype=torch.float64)
    here, eager = converted(dtype, x, tmp_path)
    assert torch.equal(here, eager)


@pytest.mark.parametrize("n", [3, 40])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_floats_that_are_cut_to_integers_have_no_negative_zero_and_stay_in_range(
    source: torch.dtype, dtype: torch.dtype, n: int, tmp_path: Path
) -> None:
    x = torch.tensor([-0.0, -0.5, -1.5, 2.5, 3e4, torch.inf, torch.nan, 3e38] * 5)[:n].to(source)
    here, eager = converted(dtype, x, tmp_path)
    assert torch.equal(here, eager) and torch.equal(here.signbit(), eager.signbit())
