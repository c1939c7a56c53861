"""What another kernel writes over is left out, strips of one width being one kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from interpreted_kernels import source_and_check

from treadle_codegen import pipeline
from treadle_codegen.schedule.overwritten_parts import leave_out_overwritten

aten = torch.ops.aten


def interior(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    inner = x[2:, 1:-1] - x[:-2, 1:-1]
    rows = aten.slice_scatter(aten.slice(y, 0, 1, x.shape[0] - 1), inner, 1, 1, x.shape[1] - 1)
    return aten.slice_scatter(y, rows, 0, 1, x.shape[0] - 1)


@pytest.mark.parametrize("shape", [(40, 33), (3, 70), (130, 5)], ids=str)
def test_edges_are_filled(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]) -> None:
    whole = source_and_check(interior, torch.randn(shape))
    monkeypatch.setattr(
        pipeline,
        "leave_out_overwritten",
        lambda program, costs: leave_out_overwritten(program, replace(costs, overwritten_bytes=1)),
    )
    edges = source_and_check(interior, torch.randn(shape))
    assert edges.count("@triton.jit\ndef k_") > whole.count("@triton.jit\ndef k_")
