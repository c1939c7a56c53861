"""Positions of maxima and minima along rows: the first of equal values, NaN before all others, as eager has it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from aten_capture import capture
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle_codegen.options import CodegenOptions
from treadle_codegen.pipeline import compile_graph

FUNCTIONS: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "argmax": lambda x: (x.argmax(-1),),
    "argmin": lambda x: (x.argmin(-1),),
    "with the value": lambda x: tuple(x.max(-1)),
    "both, of what is computed": lambda x: ((x + x).argmax(-1), (x + x).min(-1)[1]),
    "of all": lambda x: (x.argmax(), x.argmin()),
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def check(name: str, x: torch.Tensor, cache: Path, *, in_strips: bool) -> None:
    options = CodegenOptions(threads=1, cache_dir=cache, verify=True)
    graph = compile_graph(capture(lambda x: FUNCTIONS[name](x), [x]), [x], options=options)
    assert ("first = 256" in graph.source) is in_strips
    for found, expected in zip(graph(x), FUNCTIONS[name](x), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("length", [24, 255, 256, 700])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_ties_and_nan(name: str, dtype: torch.dtype, length: int, cache: Path) -> None:
    x = torch.randint(0, 30, (9, length)).to(dtype)
    if dtype.is_floating_point:
        x[1, length - 1] = x[2, 3] = x[2, 9] = float("nan")
        x[3], x[4] = float("-inf"), float("inf")
        x[5, 7], x[6, 8] = float("inf"), float("-inf")
    else:
        x[3], x[4] = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    check(name, x, cache, in_strips=True)


def test_short_rows_take_one_value_after_the_other(cache: Path) -> None:
    check("argmax", torch.randint(0, 4, (50, 10)).float(), cache, in_strips=False)
    check("argmin", torch.full((5, 10), float("inf")), cache, in_strips=False)
    check("argmax", torch.full((5, 10), torch.iinfo(torch.int32).min, dtype=torch.int32), cache, in_strips=False)


@given(
    st.lists(st.sampled_from([0.0, -0.0, 1.0, float("nan"), float("inf"), float("-inf")]), min_size=300, max_size=300)
)
@settings(max_examples=30, deadline=None)
def test_any_row(row: list[float]) -> None:
    x = torch.tensor([row, row[::-1]])
    options = CodegenOptions(threads=1)
    graph = compile_graph(capture(lambda x: (x.argmax(1), x.argmin(1)), [x]), [x], options=options)
    assert torch.equal(graph(x)[0], x.argmax(1)) and torch.equal(graph(x)[1], x.argmin(1))
