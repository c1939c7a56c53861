"""What operators of ATen get: arguments with eager's strides."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)
from aten_capture import capture
from dynamic_cases import compile_dynamic

from treadle_codegen import CodegenOptions, compile_graph

seen: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
names = itertools.count()


@pytest.fixture
def recorded() -> Callable[[torch.Tensor], torch.Tensor]:
    """A custom operator that tells the strides it gets."""

    @torch.library.custom_op(f"treadle_test_extern::record{next(names)}", mutates_args=())
    def record(x: torch.Tensor) -> torch.Tensor:
        seen.append((tuple(x.shape), x.stride()))
        return x.contiguous() * 1

    @record.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty(x.shape, dtype=x.dtype)

    return record


PROGRAMS = {
    "rows with gaps": lambda x: F.pad(x * 2, (0, 8 - x.shape[-1] % 8)).narrow(-1, 0, x.shape[-1]),
    "expanded rows with gaps": lambda x: (
        F.pad(x.sin()[:, None], (0, 8 - x.shape[-1] % 8)).narrow(-1, 0, x.shape[-1]).expand(-1, 3, -1, -1)
    ),
    "transposed": lambda x: (x + 1).transpose(1, 2),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_arguments_have_the_strides_of_eager(
    name: str, dynamic: bool, recorded: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    def function(x: torch.Tensor) -> Any:
        return recorded(PROGRAMS[name](x)) + 1

    x = torch.randn(2, 5, 7)
    if dynamic:
        graph = compile_dynamic(function, lambda rows, columns: [(2, rows, columns)], (5, 7), tmp_path)
    else:
        graph = compile_graph(capture(function, (x,)), [x], options=CodegenOptions(cache_dir=tmp_path))
    for given in (x, torch.randn(2, 9, 13)) if dynamic else (x,):
        seen.clear()
        expected = function(given)
        torch.testing.assert_close(graph(given)[0], expected)
        assert seen[0] == seen[1]


def test_a_small_part_of_a_long_row_is_copied_without_gaps(
    recorded: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    x = torch.randn(4, 1000)
    graph_module = capture(lambda x: recorded((x * 2).narrow(1, 0, 10)), (x,))
    graph = compile_graph(graph_module, [x], options=CodegenOptions(cache_dir=tmp_path))
    seen.clear()
    torch.testing.assert_close(graph(x)[0], x[:, :10] * 2)
    assert seen[0] in {((4, 10), (10, 1)), ((4, 10), (1000, 1))}


@pytest.mark.parametrize("dynamic", [False, True])
def test_parts_of_a_projection_keep_the_order_of_their_dimensions(
    dynamic: bool, recorded: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    """Most of such an argument's memory would be other parts: it is dense, and the results of attention have the planned layout."""

    def function(x: torch.Tensor) -> Any:
        heads = (x * 2).view(x.shape[0], x.shape[1], 3, 4, 8).permute(2, 0, 3, 1, 4)
        return sum(recorded(part) for part in heads.unbind())

    x = torch.randn(2, 5, 96)
    if dynamic:
        graph = compile_dynamic(function, lambda batch, length: [(batch, length, 96)], (2, 5), tmp_path)
    else:
        graph = compile_graph(capture(function, (x,)), [x], options=CodegenOptions(cache_dir=tmp_path))
    for given in (x, torch.randn(3, 7, 96)) if dynamic else (x,):
        seen.clear()
        (made,) = graph(given)
        batch, length, _ = given.shape
        assert seen == [((batch, 4, length, 8), (length * 32, 8, 32, 1))] * 3
        torch.testing.assert_close(made, function(given))
