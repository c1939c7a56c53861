"""`unfold` and `fold`: windows of images as columns and back, against eager."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from aten_capture import capture

from treadle_codegen import compile_graph
from treadle_codegen.options import CodegenOptions

SHAPES = [(2, 3, 9, 11), (3, 9, 11)]
GEOMETRIES = list(itertools.product((1, 3, (2, 4)), (1, 2), (0, 1, (2, 1)), (1, 2, (1, 3))))


def source_and_check(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> str:
    compiled = compile_graph(capture(function, [x]), [x], options=CodegenOptions(verify=True))
    (found,), expected = compiled(x), function(x)
    assert found.shape == expected.shape and found.stride() == expected.stride() and found.dtype == expected.dtype
    torch.testing.assert_close(found, expected)
    return compiled.source


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_columns_are_read_from_the_image(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    for kernel, dilation, padding, stride in GEOMETRIES[::4]:
        x = torch.randn(shape).to(dtype)
        source = source_and_check(lambda x, g=(kernel, dilation, padding, stride): F.unfold(x, *g) * 2, x)
        assert "bad |=" not in source and "im2col" not in source.partition("def run")[2]


@pytest.mark.parametrize("shape", SHAPES)
def test_columns_are_added_up(shape: tuple[int, ...]) -> None:
    for kernel, dilation, padding, stride in GEOMETRIES[1::5]:
        columns = F.unfold(torch.randn(shape), kernel, dilation, padding, stride)
        source_and_check(lambda y, g=(kernel, dilation, padding, stride): F.fold(y + 1, (9, 11), *g) * 2, columns)


def test_windows_next_to_each_other_are_added_up_in_a_kernel() -> None:
    def smooth(x: torch.Tensor) -> torch.Tensor:
        return F.fold(F.unfold(x, 3, padding=1) * 0.1, (16, 20), 3, padding=1)

    source = source_and_check(smooth, torch.randn(2, 4, 16, 20))
    assert source.count("KERNEL void") == 1


@pytest.mark.parametrize("kernel", [(7, 7), (3, 3)])
def test_what_stays_with_aten(kernel: tuple[int, int]) -> None:
    """Large windows, and windows that are far apart."""
    stride = 1 if kernel == (7, 7) else 2
    columns = F.unfold(torch.randn(2, 3, 16, 16), kernel, stride=stride)
    source = source_and_check(lambda y: F.fold(y * 2, (16, 16), kernel, stride=stride) + 1, columns)
    assert source.count("KERNEL void") == 2


def test_an_image_without_images() -> None:
    source_and_check(lambda x: F.unfold(x, 3) * 2, torch.randn(0, 3, 9, 11))


def test_a_column_of_an_image_that_is_computed() -> None:
    def fn(x: torch.Tensor) -> Any:
        return F.unfold(torch.sin(x).roll(1, -1), 3, padding=1).view(2, 3, 9, -1).amax(2)

    source_and_check(fn, torch.randn(2, 3, 9, 11))
