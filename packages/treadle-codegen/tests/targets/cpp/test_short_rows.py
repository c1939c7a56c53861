"""Short rows are written out in a vectorised loop over the rows: values, dtypes, NaN, positions that are data, threads, unknown sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from aten_capture import capture
from dynamic_cases import compile_dynamic

from treadle_codegen.options import CodegenOptions
from treadle_codegen.pipeline import compile_graph


def source_and_check(function: Callable[..., torch.Tensor], *tensors: torch.Tensor, threads: int = 1) -> str:
    options = CodegenOptions(threads=threads, verify=True)
    graph = compile_graph(capture(function, list(tensors)), list(tensors), options=options)
    expected = function(*tensors)
    tolerance = {} if expected.dtype in (torch.float32, torch.float64) else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(graph(*tensors)[0], expected, equal_nan=True, **tolerance)
    return graph.kernel_source


def is_written_out(source: str) -> bool:
    return any(
        pragma.startswith("#pragma omp") and "simd" in pragma and loop.startswith("for (i64 o")
        for pragma, loop in zip(*(map(str.strip, source.splitlines()[k:]) for k in (0, 1)), strict=False)
    )


def forces(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    difference = x[None] - x[:, None]
    return m / (difference.pow(2).sum(-1) + 1e-3) ** 1.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distances_of_points(dtype: torch.dtype) -> None:
    assert is_written_out(source_and_check(forces, torch.randn(50, 3, dtype=dtype), torch.rand(50, dtype=dtype)))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_softmax_and_layer_norm(n: int, dtype: torch.dtype, threads: int) -> None:
    x = torch.randn(3000, n).to(dtype)
    assert is_written_out(source_and_check(lambda x: x.softmax(-1), x, threads=threads))
    source_and_check(lambda x: F.layer_norm(x, (n,)), x, threads=threads)
    source_and_check(lambda x: x.logsumexp(-1), x.reshape(2, 1500, n), threads=threads)


@pytest.mark.parametrize("name", ["amax", "amin", "sum", "prod", "mean", "var", "argmax"])
@pytest.mark.parametrize("shape", [(500, 7), (40, 50, 2, 3), (3, 6), (700, 9), (1, 6)])
def test_reductions_of_short_rows(name: str, shape: tuple[int, ...]) -> None:
    x = torch.rand(shape)
    x[..., 0, 1] = float("nan")
    axes = -1 if name in ("prod", "argmax") or len(shape) < 4 else (-2, -1)
    source_and_check(lambda x: getattr(x, name)(axes).exp() + 1, x)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_integers_and_bools(dtype: torch.dtype) -> None:
    x = torch.randint(0, 2 if dtype is torch.bool else 100, (300, 6)).to(dtype)
    source_and_check(lambda x: x.sum(-1), x)
    source_and_check(lambda x: x.any(-1) & ~x.all(-1), x)
    source_and_check(lambda x: x.amax(-1), x)


def test_positions_that_are_data_are_checked() -> None:
    table, first, second = torch.randn(40, 5), torch.randint(-40, 40, (300,)), torch.randint(0, 40, (300,))

    def distances(table: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return (table[first] - table[second]).pow(2).sum(-1).sqrt().exp()

    tensors = [table, first, second]
    graph = compile_graph(capture(distances, tensors), tensors)
    assert is_written_out(graph.kernel_source)
    torch.testing.assert_close(graph(*tensors)[0], distances(*tensors))
    for wrong in (40, -41):
        with pytest.raises(IndexError, match="out of range"):
            graph(table, first, torch.cat([second[1:], torch.tensor([wrong])]))


def test_positions_that_are_checked_before_are_not_checked_again() -> None:
    table, row, at = torch.randn(400, 5), torch.randn(5), torch.randint(0, 400, (300,))

    def distances(table: torch.Tensor, row: torch.Tensor, at: torch.Tensor) -> list[torch.Tensor]:
        stored = table.select_scatter(row, 0, 3)
        return [stored, (stored[at] - row).pow(2).sum(-1).neg().exp()]

    tensors = [table, row, at]
    gm = capture(distances, tensors)
    gm.graph.output_node().args[0][0].meta["mutates"] = 0
    graph = compile_graph(gm, tensors, options=CodegenOptions(verify=True))
    expected = distances(*tensors)
    results = graph(*tensors)
    assert results[0] is table
    torch.testing.assert_close([*results], expected)
    assert is_written_out(graph.kernel_source)
    assert graph.kernel_source.count("bad |=") == 1


def test_rows_that_lie_far_apart_stay_loops() -> None:
    source = source_and_check(lambda x: x[:, :6].softmax(-1), torch.randn(300, 64))
    assert not is_written_out(source)


def test_any_number_of_rows(tmp_path: Path) -> None:
    graph = compile_dynamic(lambda x: x.softmax(-1), lambda n: [(n, 6)], (333,), tmp_path)
    assert is_written_out(graph.kernel_source)
    for n in (333, 2, 17, 1000):
        rows = torch.randn(n, 6)
        torch.testing.assert_close(graph(rows)[0], rows.softmax(-1))
