"""Kernels over symbolic sizes: one compile, many sizes, against eager; rows of unknown length, sums in blocks, columns."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)
from aten_capture import capture
from dynamic_cases import CASES, PLAIN, compile_dynamic
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from treadle_codegen import CodegenOptions, CompiledGraph, compile_graph


def check(function: Any, compiled: CompiledGraph, inputs: Sequence[torch.Tensor]) -> None:
    """Equal to eager up to rounding: the error allowed follows from a float64 run of eager."""
    (actual,), expected = compiled(*inputs), function(*inputs)
    exact = function(*[x.double() for x in inputs])
    assert actual.shape == expected.shape
    assert actual.stride() == expected.stride() or actual.numel() < 2 or 1 in actual.shape
    own = (expected.double() - exact).abs().max().item()
    scale = exact.abs().max().item()
    assert (actual.double() - exact).abs().max().item() <= 4 * own + 4e-6 * scale


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@functools.cache
def _compiled(name: str, cache: Path) -> tuple[CompiledGraph, int]:
    function, shapes = CASES[name]
    rank = shapes.__code__.co_argcount
    return compile_dynamic(function, shapes, (6, 14, 10)[:rank] if rank > 2 else (6, 37), cache), rank


def run_at(name: str, cache: Path, sizes: Sequence[int]) -> None:
    graph, rank = _compiled(name, cache)
    function, shapes = CASES[name]
    if name == "average pooling":  # the window has to fit
        sizes = [max(2, n) for n in sizes]
    torch.manual_seed(0)
    check(function, graph, [torch.randn(shape) for shape in shapes(*sizes[:rank])])


@pytest.mark.parametrize("name", CASES)
def test_sizes_at_the_edges(name: str, cache: Path) -> None:
    for sizes in ((1, 1, 1), (2, 1, 3), (1, 2, 2), (3, 17, 5), (7, 64, 9), (33, 127, 16), (2, 4099, 3)):
        run_at(name, cache, sizes)


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.tuples(st.integers(1, 40), st.integers(1, 150), st.integers(1, 40)))
def test_random_sizes(name: str, cache: Path, sizes: tuple[int, int, int]) -> None:
    run_at(name, cache, sizes)


def test_rows_that_do_not_fit_the_stack(cache: Path) -> None:
    """Both places of a row of unknown length, on one thread and on two."""
    function = lambda x: (x * 1.5).softmax(-1)  # noqa: E731
    for threads in (1, 2):
        graph = compile_dynamic(function, PLAIN, (6, 37), cache, max_row_bytes=256, threads=threads)
        assert "[64]" in graph.source
        for n, c in ((5, 64), (5, 65), (300, 200), (1, 1)):
            torch.manual_seed(n)
            check(function, graph, [torch.randn(n, c)])


def test_a_long_constant_row_stays_in_memory(cache: Path) -> None:
    """A softmax over six million elements needs 24 MB for its powers: more than a stack has."""
    torch.manual_seed(0)
    x = torch.randn(6_000_000)
    graph = compile_graph(
        capture(lambda x: x.softmax(0), [x]), [x], options=CodegenOptions(threads=1, cache_dir=cache, verify=True)
    )
    torch.testing.assert_close(graph(x)[0], x.softmax(0))


def test_long_sums_of_unknown_length_are_added_up_in_double(cache: Path) -> None:
    function = lambda x: x.sum(-1)  # noqa: E731
    graph = compile_dynamic(function, PLAIN, (6, 37), cache)
    for c in (4095, 4096, 4097, 300_000):
        torch.manual_seed(0)
        x = torch.rand(2, c)
        torch.testing.assert_close(graph(x)[0], x.double().sum(-1).float(), rtol=2e-6, atol=0)


def test_a_row_of_unknown_length_is_an_array_on_the_stack(cache: Path) -> None:
    graph, _ = _compiled("softmax", cache)
    assert "<= 65536 ?" in graph.source


@pytest.mark.parametrize("columns", [16, 17, 31, 49, 127, 200])
@pytest.mark.parametrize("threads", [1, 2])
def test_odd_rows_of_known_length_are_walked_in_chunks(columns: int, threads: int, cache: Path) -> None:
    """Sums, extrema with NaN, products, truth values and rows kept on the stack, where a few elements are left over, or none."""
    functions = (
        lambda x: x.softmax(-1),
        lambda x: F.layer_norm(x * 2, (x.shape[-1],)),
        lambda x: x.amin(-1) + x.amax(-1),
        lambda x: (x * 0.1 + 1).prod(-1),
        lambda x: (x > 2).any(-1).float() + (x < 9).all(-1),
    )
    torch.manual_seed(0)
    x = torch.randn(67, columns)
    for function in functions:
        options = CodegenOptions(threads=threads, cache_dir=cache, verify=True)
        graph = compile_graph(capture(function, [x]), [x], options=options)
        assert "Lanes" in graph.kernel_source
        check(function, graph, [x])
    graph = compile_graph(capture(functions[2], [x]), [x], options=CodegenOptions(threads=threads, cache_dir=cache))
    for at in (0, columns - 1):
        y = x.clone()
        y[5, at], y[6, at] = float("nan"), float("inf")
        torch.testing.assert_close(graph(y)[0], functions[2](y), equal_nan=True)


@pytest.mark.parametrize("columns", [49, 64])
def test_rows_of_elements_that_lie_apart_are_no_chunks(columns: int, cache: Path) -> None:
    """Of a transposed tensor every element is fetched from a line of its own: the compiler's own loop does that as well."""
    function = lambda x: x.var((2, 3), keepdim=True)  # noqa: E731
    torch.manual_seed(0)
    x = torch.randn(3, 32, 7, columns).contiguous(memory_format=torch.channels_last)
    graph = compile_graph(capture(function, [x]), [x], options=CodegenOptions(cache_dir=cache, verify=True, threads=1))
    assert "Lanes" not in graph.kernel_source
    check(function, graph, [x])


@pytest.mark.parametrize("columns", [9, 200, 256, 257, 1000])
def test_columns_of_unknown_number_for_all_sizes_and_for_one(columns: int, cache: Path) -> None:
    """The width of a block follows from the number of columns where that is a constant, which shows in no result."""
    function = lambda x: (x.sum(0), x.amax(0))  # noqa: E731
    graph = compile_dynamic(function, PLAIN, (6, 37), cache)
    torch.manual_seed(0)
    x = torch.randn(70, columns)
    before = graph(x)
    assert graph.specialise()
    for mine, general, eager in zip(graph(x), before, function(x), strict=True):
        assert torch.equal(mine, general)
        torch.testing.assert_close(mine, eager, rtol=1e-5, atol=1e-5)


def test_infinities_leave_no_trace_in_later_blocks(cache: Path) -> None:
    graph = compile_dynamic(lambda x: x.sum(-1), PLAIN, (6, 37), cache)
    x = torch.ones(3, 10_000)
    x[1, 17] = float("inf")
    x[2, 9_999] = float("-inf")
    torch.testing.assert_close(graph(x)[0], x.sum(-1))


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic", "area"])
def test_sizes_rounded_from_floats_are_the_hosts(mode: str, cache: Path) -> None:
    """int(n * 1.3) in double, as eager has it: a kernel is told the number."""

    def enlarge(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=1.3, mode=mode) + 1

    graph = compile_dynamic(enlarge, lambda h, w: [(2, 3, h, w)], (8, 10), cache)
    for h, w in ((8, 10), (9, 7), (5, 30)):
        check(enlarge, graph, [torch.randn(2, 3, h, w)])


def test_what_a_mask_reads_need_not_be_in_memory(cache: Path) -> None:
    """The sums of softmax's rows live in registers; the padding reads them under its mask."""

    def shifted(x: torch.Tensor) -> torch.Tensor:
        x = F.pad(x.softmax(-1)[:, 1:], (0, 0, 1, 0))
        return x + x.sum(0)

    graph = compile_dynamic(shifted, lambda *sizes: [sizes], (4, 3, 5), cache)
    for sizes in ((4, 3, 5), (2, 6, 33), (1, 2, 100)):
        check(shifted, graph, [torch.randn(*sizes)])
