"""Powers by a number: as in eager at zeros, infinities and negative numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from aten_capture import capture
from torch import Tensor

from treadle_codegen import CodegenOptions, compile_graph


@pytest.mark.parametrize("exponent", [0.5, -0.5, 0, 1, -1, 2, -2, 3, 2.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_powers_of_special_numbers(dtype: torch.dtype, exponent: float, tmp_path: Path) -> None:
    def power(x: Tensor) -> Tensor:
        return x**exponent

    x = torch.tensor([-torch.inf, torch.inf, -0.0, 0.0, -4.0, 4.0, torch.nan], dtype=dtype)
    here = compile_graph(capture(power, [x]), [x], options=CodegenOptions(cache_dir=tmp_path))(x)[0]
    torch.testing.assert_close(here, power(x), equal_nan=True)
    known = ~here.isnan()
    assert torch.equal(here.signbit()[known], power(x).signbit()[known])
