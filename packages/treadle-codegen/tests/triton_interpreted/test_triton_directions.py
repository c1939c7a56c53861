"""Kernels that walk backward compute what those that walk forward do."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from aten_capture import capture

from treadle_codegen import compile_graph
from treadle_codegen.targets.table import TARGETS


@pytest.fixture(autouse=True)
def a_small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    name = compile_graph.__kwdefaults__["target"]
    target = TARGETS[name]
    costs = dataclasses.replace(target.costs, cached_bytes=64)
    monkeypatch.setitem(TARGETS, name, dataclasses.replace(target, costs=costs))


@pytest.mark.parametrize("shape", [(37, 41), (300, 7), (5, 2000)])
def test_values(shape: tuple[int, ...]) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x = x - x.mean(0)
        return (x / x.norm(dim=0)).cumsum(0) + x.t().contiguous().t()

    x = torch.randn(shape, dtype=torch.float64)
    compiled = compile_graph(capture(fn, [x]), [x])
    assert "tl.num_programs(0) - 1 - tl.program_id(0)" in compiled.source
    torch.testing.assert_close(compiled(x)[0], fn(x))
