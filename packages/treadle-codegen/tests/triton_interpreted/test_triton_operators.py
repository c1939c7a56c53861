"""PyTorch's operator samples, as Triton kernels, run by its interpreter."""

from __future__ import annotations

import pytest
import torch
from aten_capture import capture
from other_targets import OPERATORS, check, check_samples

from treadle_codegen import compile_graph


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_agree_with_eager(name: str) -> None:
    check_samples(name)


def test_these_tests_run_triton_kernels() -> None:
    compiled = compile_graph(capture(torch.relu, [torch.ones(3)]), [torch.ones(3)])
    assert "@triton.jit\ndef k_" in compiled.source and "data_ptr" not in compiled.host_source


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (2, 0, 3), (3, 2, 0)])
def test_tensors_without_elements(shape: tuple[int, ...]) -> None:
    check(lambda x: (x * 2 + 1, x.sum(), x.sum(-1), x.sum(0), torch.cat([x, x])), [torch.randn(shape)], 1e-6)


def test_sums_over_nothing_in_several_dimensions() -> None:
    check(lambda x: x.permute(2, 0, 1).sum((1, 2)), [torch.randn(4, 0, 3)], 1e-6)


def test_the_sign_of_zero_survives() -> None:
    x = torch.tensor([0.0, -0.0, 1.0, -2.0, torch.inf])
    compiled = check(lambda x: (1 / -x, torch.signbit(-(x * 2)), torch.copysign(torch.ones(5), -x)), [x], 0)
    assert compiled is not None and compiled.kernels


def test_positions_of_equal_maxima_and_minima() -> None:
    x = torch.tensor([[0.0, 2.0, 2.0, 1.0, 0.0], [1.0, torch.nan, torch.nan, 0.0, 3.0], [2.0, 1.0, 0.0, 1.0, 2.0]])
    compiled = check(lambda x: (x.argmax(-1), x.argmin(0), *x.min(-1), x.argmax()), [x], 0)
    assert compiled is not None and "reduce_argmax" in compiled.source
