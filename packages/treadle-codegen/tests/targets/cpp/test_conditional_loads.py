"""Loads under a condition, several to a group of neighbours: g++ 12.2 reads the wrong elements where they stand inside of the condition."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from aten_capture import capture
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle_codegen.options import CodegenOptions
from treadle_codegen.pipeline import compile_graph


def check(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> str:
    graph = compile_graph(
        capture(function, list(tensors)), list(tensors), options=CodegenOptions(threads=1, verify=True)
    )
    torch.testing.assert_close(graph(*tensors)[0], function(*tensors), rtol=1e-5, atol=1e-5)
    return graph.source


def test_rows_of_three_behind_a_padded_one() -> None:
    def squares(x: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(F.pad((x * x).unsqueeze(1), (0, 0, 1, 0)), (2, 1), stride=1)

    assert "[j0 >= 1 ? " in check(squares, torch.randn(1, 6, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
def test_dtypes(dtype: torch.dtype) -> None:
    x = torch.randint(-100, 100, (2, 37, 4)).to(dtype)
    check(lambda x: F.pad(x + x, (0, 0, 2, 1)) + 1, x)


def test_a_tensor_without_elements_is_not_read() -> None:
    check(lambda x, y: torch.cat([x * 2, y * y], 1).flip(1), torch.randn(30, 0, 3), torch.randn(30, 2, 3))


@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 9),
    pads=st.tuples(*[st.integers(-1, 3)] * 4),
    steps=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    kind=st.sampled_from(["slice", "max", "avg", "sum", "transpose"]),
)
@settings(max_examples=60, deadline=None)
def test_any_padding(
    rows: int, columns: int, pads: tuple[int, int, int, int], steps: tuple[int, int], kind: str
) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        padded = F.pad(x * x, pads, value=2.0)
        if kind == "slice":
            return padded[..., :: steps[0], :: steps[1]] * 2
        if kind == "transpose":
            return padded.transpose(-1, -2)[..., :: steps[0]] + 1
        if kind == "sum":
            return padded[..., :: steps[1]].sum(-1)
        pool = F.max_pool2d if kind == "max" else F.avg_pool2d
        return pool(padded, (min(2, padded.shape[-2]), min(3, padded.shape[-1])), steps)

    x = torch.randn(2, 2, rows + 2, columns + 2)
    check(function, x)
