"""Kernels that read along one axis and write along another, in tiles: sizes that tiles divide and others, dtypes, threads."""

from __future__ import annotations

import pytest
import torch
from aten_capture import capture

from treadle_codegen import CodegenOptions, compile_graph

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
]
DTYPES += [torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(64, 128), (65, 131), (33, 200), (3, 40, 140)])
@pytest.mark.parametrize("threads", [1, 2])
def test_transposed_operands(shape: tuple[int, ...], dtype: torch.dtype, threads: int) -> None:
    x = (torch.randn(shape) * 4).to(dtype)
    y = (torch.randn(*shape[:-2], shape[-1], shape[-2]) * 4).to(dtype)

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        turned = x.transpose(-1, -2)
        return turned & y if dtype is torch.bool else turned + y

    graph = compile_graph(capture(f, (x, y)), (x, y), options=CodegenOptions(threads=threads))
    (actual,) = graph(x, y)
    torch.testing.assert_close(actual, f(x, y))
    assert "[64][64]" in graph.kernel_source


def test_images_change_their_layout() -> None:
    x = torch.randn(2, 48, 20, 20)

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format)

    graph = compile_graph(capture(f, (x,)), (x,))
    torch.testing.assert_close(graph(x), [f(x)])


def test_what_is_written_in_the_same_kernel_is_not_turned() -> None:
    x = torch.randn(80, 80)

    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.ops.aten.slice_scatter(x * 2, x[:10], 0, 0, 10)
        return torch.ops.aten.slice_scatter(y, y.t()[20:40] + 1, 0, 20, 40)

    torch.testing.assert_close(compile_graph(capture(f, (x,)), (x,))(x), [f(x)])


def test_short_axes_and_reductions_stay_as_they_are() -> None:
    x = torch.randn(16, 200)
    for f in (lambda x: x.t() + torch.ones(200, 16), lambda x: x.t().sum(1)):
        assert "[64][64]" not in compile_graph(capture(f, (x,)), (x,)).kernel_source
