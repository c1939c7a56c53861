"""The translation unit of a graph."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from aten_capture import capture
from torch import Tensor

from treadle_codegen import CodegenOptions, compile_graph


@pytest.mark.parametrize(("steps", "is_long"), [(3, False), (700, True)])
def test_long_segments_are_optimised_less(steps: int, is_long: bool, tmp_path: Path) -> None:
    chosen = random.Random(0)
    functions = [chosen.choice((torch.tanh, torch.sigmoid)) for _ in range(steps)]  # no step is repeated

    def program(x: Tensor, w: Tensor) -> Tensor:
        y = x[0]
        for n in range(1, steps):
            y = functions[n](y @ w + x[n])
        return y

    torch.manual_seed(0)
    x, w = torch.randn(steps, 4, 8), torch.randn(8, 8)
    compiled = compile_graph(capture(program, [x, w]), [x, w], options=CodegenOptions(cache_dir=tmp_path, threads=1))
    assert ("LONG_SEGMENT void segment_0" in compiled.source) is is_long
    torch.testing.assert_close(compiled(x, w)[0], program(x, w))
