"""Short last axes are written out in a loop over the axis before, and change no value."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from aten_capture import capture
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle_codegen.options import CodegenOptions
from treadle_codegen.pipeline import compile_graph


def source_and_check(function: Callable[..., torch.Tensor], *tensors: torch.Tensor, threads: int = 1) -> str:
    options = CodegenOptions(threads=threads, verify=True)
    graph = compile_graph(capture(function, list(tensors)), list(tensors), options=options)
    torch.testing.assert_close(graph(*tensors)[0], function(*tensors), rtol=1e-6, atol=1e-6)
    return graph.source


def test_parts_of_complex_numbers() -> None:
    x, y = torch.randn(300, 16, 2), torch.randn(16, dtype=torch.complex64)
    source = source_and_check(lambda x, y: torch.view_as_real(torch.view_as_complex(x) * y), x, y)
    assert "{ const i64" in source


@pytest.mark.parametrize("threads", [1, 2])
def test_coordinates_with_a_weight_for_each_point(threads: int) -> None:
    source = source_and_check(
        lambda x, w: x * w[:, None] + 1, torch.randn(70_000, 3), torch.randn(70_000), threads=threads
    )
    assert "{ const i64" in source


def test_long_axes_and_sums_are_loops() -> None:
    assert "{ const i64" not in source_and_check(lambda x, w: x * w[:, None], torch.randn(70, 5), torch.randn(70))
    assert "{ const i64" not in source_and_check(
        lambda x, w: (x * w[:, None]).sum(), torch.randn(70, 3), torch.randn(70)
    )


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("last", [5, 7, 11, 15])
def test_functions_of_a_few_points_are_computed_across_rows(last: int, threads: int) -> None:
    x, w = torch.randn(30_001, last), torch.randn(30_001)
    assert "NO_VECTORS_AROUND;" in source_and_check(lambda x, w: torch.sin(x * w[:, None]) + x, x, w, threads=threads)
    assert "NO_VECTORS_AROUND;" not in source_and_check(lambda x, w: x * w[:, None] + x, x, w, threads=threads)


def test_vectors_that_are_full_stay_along_the_axis() -> None:
    assert "NO_VECTORS_AROUND;" not in source_and_check(
        lambda x, w: torch.sin(x * w[:, None]), torch.randn(300, 8), torch.randn(300)
    )


def test_functions_of_small_matrices() -> None:
    v, w = torch.randn(301, 3), torch.randn(301)
    source = source_and_check(lambda v, w: torch.sin(v[:, :, None] * v[:, None, :]) * w[:, None, None], v, w)
    assert "NO_VECTORS_AROUND;" in source
    source = source_and_check(lambda v, w: v[:, :, None] * v[:, None, :] * w[:, None, None], v, w)
    assert "NO_VECTORS_AROUND;" not in source


@pytest.mark.parametrize("rows", [5, 128, 129, 300])
def test_a_long_body_of_functions(rows: int) -> None:
    """Positional encodings of points on rays, as of radiance fields."""

    def encode(x: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        points = x[:, None] + d[:, None] * torch.arange(float(rows))[:, None] / rows
        waves = [f(points * 2**k) for k in range(6) for f in (torch.sin, torch.cos)]
        return torch.cat([points, *waves], -1)

    source = source_and_check(encode, torch.randn(11, 3), torch.randn(11, 3))
    assert "NO_VECTORS_AROUND;" in source


@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    last=st.integers(2, 7),
    which=st.lists(st.booleans(), min_size=4, max_size=4),
    flipped=st.booleans(),
    expensive=st.booleans(),
)
@settings(max_examples=50, deadline=None)
def test_any_broadcasting(shape: list[int], last: int, which: list[bool], flipped: bool, expensive: bool) -> None:
    x = torch.randn(*shape, last)
    y = torch.randn([n if keep else 1 for n, keep in zip(x.shape, which, strict=False)])

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        first = (torch.cos(x) if expensive else x) * y + (x > y).float()
        return first.flip(-1) * first if flipped else (first.transpose(0, -1) + 1).contiguous()

    source_and_check(function, x, y)
