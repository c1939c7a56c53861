"""Reductions down columns: when they are chosen, and that every kind and shape agrees with eager."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from aten_capture import capture

from treadle_codegen.options import CodegenOptions
from treadle_codegen.pipeline import compile_graph


def compiled(function: Callable[..., torch.Tensor], x: torch.Tensor, cache: Path, threads: int = 1):
    options = CodegenOptions(threads=threads, cache_dir=cache, verify=True)
    return compile_graph(capture(function, [x]), [x], options=options)


def in_columns(source: str) -> bool:
    return "for (i64 l = 0;" in source


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


KINDS = {
    "sum": (lambda x: x.sum(0), torch.float32),
    "sum of doubles": (lambda x: x.sum(0), torch.float64),
    "sum of integers": (lambda x: x.sum(0), torch.int32),
    "sum of bfloat16": (lambda x: x.sum(0), torch.bfloat16),
    "prod": (lambda x: x.prod(0), torch.float64),
    "max": (lambda x: x.amax(0), torch.float32),
    "min": (lambda x: x.amin(0), torch.int8),
    "any": (lambda x: (x > 2).any(0), torch.float32),
    "all": (lambda x: (x < 2).all(0), torch.float32),
    "mean with epilogue": (lambda x: x.mean(0).exp() * 2, torch.float32),
    "two at once": (lambda x: x.sum(0) + (x * x).sum(0), torch.float32),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("columns", [9, 64, 300])
def test_kinds(name: str, columns: int, cache: Path) -> None:
    function, dtype = KINDS[name]
    x = torch.randn(37, columns).mul(2).to(dtype)
    graph = compiled(function, x, cache)
    assert in_columns(graph.source)
    tolerance = 3e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(graph(x)[0], function(x), rtol=tolerance, atol=tolerance)


def test_not_a_number_wins(cache: Path) -> None:
    x = torch.randn(5, 70)
    x[2, 3] = float("nan")
    graph = compiled(lambda x: x.amax(0), x, cache)
    assert in_columns(graph.source)
    torch.testing.assert_close(graph(x)[0], x.amax(0), equal_nan=True)


def test_long_sums_are_added_up_in_double(cache: Path) -> None:
    x = torch.rand(200_000, 8)
    graph = compiled(lambda x: x.sum(0), x, cache)
    assert in_columns(graph.source)
    torch.testing.assert_close(graph(x)[0], x.double().sum(0).float(), rtol=2e-6, atol=0)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8])
@pytest.mark.parametrize("columns", [9, 64, 300])
def test_the_first_of_equal_positions(dtype: torch.dtype, columns: int, threads: int, cache: Path) -> None:
    x = torch.randint(-3, 4, (41, columns)).to(dtype)
    if dtype.is_floating_point:
        x[20, 3] = x[30, 3] = float("nan")
        x[:, 4], x[:, 5] = float("-inf"), float("inf")
    for function in (lambda x: x.argmax(0), lambda x: x.argmin(0), lambda x: x.max(0)[1]):
        graph = compiled(function, x, cache, threads)
        assert in_columns(graph.source)
        assert torch.equal(graph(x)[0], function(x))


def test_positions_over_two_dimensions(cache: Path) -> None:
    x = torch.randint(0, 50, (3, 40, 50, 16)).permute(0, 3, 1, 2).float()
    graph = compiled(lambda x: x.flatten(2).argmax(2), x, cache)
    assert torch.equal(graph(x)[0], x.flatten(2).argmax(2))


@pytest.mark.parametrize("threads", [1, 2])
def test_outer_axes_and_channels_last(threads: int, cache: Path) -> None:
    x = torch.randn(3, 40, 50, 6).to(memory_format=torch.channels_last)
    graph = compiled(lambda x: x.mean((2, 3), keepdim=True), x, cache, threads)
    assert in_columns(graph.source)
    torch.testing.assert_close(graph(x)[0], x.mean((2, 3), keepdim=True))


NESTS = {
    "logsumexp": lambda x: x.logsumexp(1),
    "log_softmax": lambda x: x.log_softmax(1),
    "layer norm": lambda x: (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 1e-5).sqrt(),
    "variance": lambda x: x.var(1),
    "largest and where it is": lambda x: (x - x.amin(1, keepdim=True)).max(1)[1] + x.argmax(1),
    "kept between": lambda x: (x.sum(1), (x * x.sum(1, keepdim=True).exp()).sum(1) + x.sum(1)),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=lambda t: str(t)[6:])
@pytest.mark.parametrize("name", NESTS)
@pytest.mark.parametrize("shape", [(3, 21, 40), (2, 7, 6, 100), (1, 40, 515)], ids=str)
def test_several_nests(name: str, dtype: torch.dtype, shape: tuple[int, ...], threads: int, cache: Path) -> None:
    x = (torch.randn(shape) * 2).round().div(4).to(dtype)  # differences are exact, and equal where they are in eager
    graph = compiled(NESTS[name], x, cache, threads)
    assert in_columns(graph.source) or (name, dtype) == ("logsumexp", torch.bfloat16)  # which is left to ATen
    expected = NESTS[name](x)
    tolerance = 3e-2 if dtype is torch.bfloat16 else 2e-5
    for found, wanted in zip(graph(x), expected if isinstance(expected, tuple) else [expected], strict=True):
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


def test_several_nests_keep_infinity_and_nan(cache: Path) -> None:
    x = torch.randn(2, 9, 40)
    x[0, :, 3], x[0, 2, 4], x[1, 5, 6] = float("-inf"), float("inf"), float("nan")
    for function in (lambda x: x.logsumexp(1), lambda x: x.log_softmax(1)):
        torch.testing.assert_close(compiled(function, x, cache)(x)[0], function(x), equal_nan=True)


def test_rows_stay_rows(cache: Path) -> None:
    x = torch.randn(37, 64)
    for function in (lambda x: x.sum(1), lambda x: x.sum(), lambda x: x[:, :4].sum(0)):
        graph = compiled(function, x, cache)
        assert not in_columns(graph.source)
        # Sums of both signs may cancel, so the allowed error follows from the magnitudes added up, not from the result.
        atol = 4 * torch.finfo(x.dtype).eps * x.abs().sum().item()
        torch.testing.assert_close(graph(x)[0].double(), function(x.double()).double(), rtol=0, atol=atol)


def test_weights_of_the_rows(cache: Path) -> None:
    """Numbers that change along the reduction only are read one by one, the rest in columns."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x[:, :1].contiguous().view(-1).exp()[:, None] * x[:, 1:]).sum(0)

    x = torch.randn(37, 301)
    graph = compiled(function, x, cache)
    assert in_columns(graph.source)
    torch.testing.assert_close(graph(x)[0], function(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(37, 70), (5000, 9)])
def test_a_vector_times_a_matrix(shape: tuple[int, int], cache: Path) -> None:
    w, v = torch.randn(shape), torch.randn(shape[0])
    options = CodegenOptions(threads=1, cache_dir=cache, verify=True)
    graph = compile_graph(capture(lambda w, v: (w * v[:, None]).sum(0), [w, v]), [w, v], options=options)
    assert in_columns(graph.source)
    torch.testing.assert_close(graph(w, v)[0].double(), w.double().t() @ v.double(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("width", [8, 64, 300])
def test_sums_of_gathered_rows_go_down_columns(width: int, threads: int, cache: Path) -> None:
    table, index = torch.randn(50, width), torch.randint(0, 50, (70, 33))
    options = CodegenOptions(threads=threads, cache_dir=cache, verify=True)

    def function(index: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(index, table).sum(1)

    graph = compile_graph(capture(function, [index, table]), [index, table], options=options)
    assert in_columns(graph.source)
    torch.testing.assert_close(graph(index, table)[0], function(index, table.double()).float())
    index[40, 3] = 50
    with pytest.raises(IndexError, match="out of range"):
        graph(index, table)
    index[40, 3] = 49
    torch.testing.assert_close(graph(index, table)[0], function(index, table.double()).float())


def test_gathered_columns_do_not(cache: Path) -> None:
    x, index = torch.randn(40, 50), torch.randint(0, 50, (64,))

    def function(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x[:, index].sum(0)

    graph = compile_graph(
        capture(function, [x, index]), [x, index], options=CodegenOptions(cache_dir=cache, verify=True)
    )
    assert not in_columns(graph.source)
    torch.testing.assert_close(graph(x, index)[0], function(x, index))


@pytest.mark.parametrize("threads", [1, 2])
def test_positions_behind_the_reduction_are_checked(threads: int, cache: Path) -> None:
    table, index, own = torch.randn(50, 64), torch.randint(0, 50, (70, 33)), torch.randint(0, 50, (70,))
    options = CodegenOptions(threads=threads, cache_dir=cache, verify=True)

    def function(index: torch.Tensor, own: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(index, table).sum(1) + torch.nn.functional.embedding(own, table)

    graph = compile_graph(capture(function, [index, own, table]), [index, own, table], options=options)
    assert in_columns(graph.source)
    torch.testing.assert_close(graph(index, own, table)[0], function(index, own, table.double()).float())
    for position in (0, 41, 69):
        wrong = own.clone()
        wrong[position] = 50
        with pytest.raises(IndexError, match="out of range"):
            graph(index, wrong, table)


def test_one_nest_reads_long_parts_of_rows(cache: Path) -> None:
    x = torch.randn(40, 5000)
    graph = compiled(lambda x: x.sum(0), x, cache)
    assert "o0b += 5000" in graph.source
    torch.testing.assert_close(graph(x)[0], x.sum(0), rtol=1e-5, atol=1e-5)


def test_several_nests_read_what_stays_in_the_caches(cache: Path) -> None:
    x = torch.randn(40, 5120)
    graph = compiled(lambda x: x.log_softmax(0), x, cache)
    assert "o0b += 256" in graph.source


def test_threads_have_a_block_each(cache: Path) -> None:
    x = torch.randn(40, 5000)
    graph = compiled(lambda x: x.sum(0), x, cache, threads=2)
    assert "o0b += 2512" in graph.source
    torch.testing.assert_close(graph(x)[0], x.sum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("columns", "rows"), [(64, 4), (1000, 16)])
def test_rows_per_pass_over_the_accumulators(columns: int, rows: int, cache: Path) -> None:
    for count in (rows - 1, 2 * rows - 1, 2 * rows, 5 * rows + 3):
        x = torch.randn(count, columns)
        graph = compiled(lambda x: x.sum(0), x, cache)
        assert (f"+= {rows}) {{" in graph.source) == (count >= 2 * rows)
        torch.testing.assert_close(graph(x)[0], x.sum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("columns", [9001, 10000])
def test_more_columns_than_accumulators_fit_the_cache(columns: int, threads: int, cache: Path) -> None:
    x = torch.randn(33, columns)
    for function in (lambda x: x.sum(0), lambda x: x.argmax(0), lambda x: x.amax(0).exp()):
        torch.testing.assert_close(compiled(function, x, cache, threads)(x)[0], function(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("rows", "columns"), [(600, 96), (4096, 96), (50_000, 33), (3000, 700)])
def test_long_columns_are_about_as_exact_as_eager(rows: int, columns: int, cache: Path) -> None:
    """A column has one accumulator: long ones are added up in runs."""
    torch.manual_seed(5)
    x = torch.randn(rows, columns)
    graph = compiled(lambda x: (x * 1.5).sum(0), x, cache)
    assert in_columns(graph.source)
    exact = (x.double() * 1.5).sum(0)
    error, error_of_eager = ((y - exact).abs().max().item() for y in (graph(x)[0], (x * 1.5).sum(0)))
    assert error < 3 * error_of_eager


def test_long_sums_of_integers_are_exact(cache: Path) -> None:
    x = torch.randint(-(2**62) // 3000, 2**62 // 3000, (3000, 70))
    graph = compiled(lambda x: x.sum(0), x, cache)
    assert torch.equal(graph(x)[0], x.sum(0))
