"""PyTorch's operator samples, compiled for the second target: plan, host function and entry ABI, where `lower/` tests programs."""

from __future__ import annotations

import pytest
import torch
from aten_capture import capture
from other_targets import OPERATORS, check_samples

from treadle_codegen import CompiledGraph, compile_graph


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_agree_with_eager(name: str) -> None:
    def no_float16(compiled: CompiledGraph) -> None:  # this target leaves it to ATen
        assert not any(kernel.text.count(": float16") for kernel in compiled.kernels)

    check_samples(name, no_float16)


def test_the_second_target_runs_these_tests() -> None:
    compiled = compile_graph(capture(torch.relu, [torch.ones(3)]), [torch.ones(3)])
    assert compiled.source.startswith("kernel ") and "data_ptr" not in compiled.host_source
