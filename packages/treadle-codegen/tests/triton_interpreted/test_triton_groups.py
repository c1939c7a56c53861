"""Small kernels of one kind, launched together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from aten_capture import capture

from treadle_codegen import CodegenOptions, CompiledGraph, compile_graph
from treadle_codegen.targets.triton.unit import parse_unit


def compiled(fn: Callable[..., Any], *inputs: torch.Tensor) -> CompiledGraph:
    run = compile_graph(capture(fn, list(inputs)), list(inputs), options=CodegenOptions(verify=True))
    for found, expected in zip(run(*inputs), torch.utils._pytree.tree_leaves(fn(*inputs)), strict=True):
        torch.testing.assert_close(found, expected)
    return run


def launches(run: CompiledGraph) -> list[int]:
    """How many pointers each launch passes."""
    found = [launch for segment in parse_unit(run.source).segments.values() for launch in segment]
    return [len(launch.slots) - (launch.group is not None) for launch in found]


def of_sizes(*sizes: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.randn(size).to(dtype) for size in sizes]


def step(*tensors: torch.Tensor) -> Sequence[torch.Tensor]:
    return [x * 0.9 + torch.sin(x) for x in tensors]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_tensors_of_different_sizes_share_a_launch(dtype: torch.dtype) -> None:
    run = compiled(lambda *xs: [x * 3 for x in xs], *of_sizes(16, 4096, 1024, 2048, 32, dtype=dtype))
    assert launches(run) == [10]


def test_sizes_that_forbid_wide_loads_are_another_kind() -> None:
    assert sorted(launches(compiled(step, *of_sizes(16, 32, 48, 7, 9, 1025)))) == [6, 6]


@pytest.mark.parametrize(("count", "expected"), [(1, [2]), (2, [4]), (16, [32]), (17, [18, 16]), (40, [28, 28, 24])])
def test_groups_have_about_the_same_size(count: int, expected: list[int]) -> None:
    assert launches(compiled(step, *of_sizes(*[64] * count))) == expected


def test_equal_groups_are_one_kernel() -> None:
    run = compiled(step, *of_sizes(*[64] * 32))
    assert launches(run) == [32, 32] and len(parse_unit(run.source).kernels) == 1


def test_what_needs_anothers_result_is_launched_behind_it() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        first = torch.sin(x)
        other = first[:64] * 2 + first[64:]  # over another space, so another kernel
        return first, other, torch.sin(y)

    compiled(fn, torch.randn(128), torch.randn(128))


def test_temporaries_are_not_shared() -> None:
    def fn(*xs: torch.Tensor) -> Any:
        return [torch.mm(torch.sin(x), x) for x in xs]

    run = compiled(fn, *[torch.randn(16, 16) for _ in range(4)])
    assert all(count == 2 for count in launches(run))


def test_updates_in_place() -> None:
    def fn(*xs: torch.Tensor) -> Sequence[torch.Tensor]:
        half = len(xs) // 2
        return [*[x.lerp(g, 0.1) for x, g in zip(xs[:half], xs[half:], strict=True)]]

    inputs = of_sizes(*[100] * 12)
    graph = capture(fn, inputs)
    output = graph.graph.output_node().args[0]
    for k, node in enumerate(output):  # type: ignore[union-attr, arg-type]
        node.meta["mutates"] = k  # type: ignore[union-attr]
    run = compile_graph(graph, inputs, options=CodegenOptions(verify=True))
    expected = [x.clone() for x in fn(*inputs)]
    run(*inputs)
    assert launches(run) == [18]  # the update is a parameter of its own
    (launch,) = parse_unit(run.source).segments["segment_0"]
    assert launch.group is not None and sum(launch.group.written) == 12  # as the input that it is, too
    torch.testing.assert_close(inputs[:6], expected)


def test_updates_of_inputs_that_nobody_reads_may_overlap() -> None:
    inputs = of_sizes(64, 64, 64)
    graph = capture(lambda *xs: [torch.full_like(x, 2.0) for x in xs], inputs)
    for k, node in enumerate(graph.graph.output_node().args[0]):  # type: ignore[union-attr, arg-type]
        node.meta["mutates"] = k  # type: ignore[union-attr]
    run = compile_graph(graph, inputs, options=CodegenOptions(verify=True))
    run(*inputs)
    (launch,) = parse_unit(run.source).segments["segment_0"]
    assert launch.group is not None and launch.group.written == (True, True, True)
    assert all(bool((x == 2).all()) for x in inputs)


@pytest.mark.parametrize("seed", range(4))
def test_random_sizes(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 3000, (23,), generator=generator)
    compiled(step, *of_sizes(*sizes.tolist()), *of_sizes(*(16 * (1 + sizes // 16)).tolist()))


def test_pointers_that_lie_at_an_offset() -> None:
    x = torch.randn(1000)
    compiled(lambda a, b, c: [v * 2 + 1 for v in (a, b, c)], x[1:301], x[301:601], x[600:900])


def test_only_updates_of_inputs_may_overlap() -> None:
    fresh = compiled(step, *of_sizes(64, 64))
    (launch,) = parse_unit(fresh.source).segments["segment_0"]
    assert launch.group is not None and not any(launch.group.written) and launch.group.bytes == (256,) * 4


def test_kernels_that_read_elsewhere_are_launched_alone() -> None:
    run = compiled(lambda *xs: [x.flip(0) + 1 for x in xs], *of_sizes(64, 64, 64))
    assert launches(run) == [2, 2, 2]
