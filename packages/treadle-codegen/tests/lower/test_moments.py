"""Means and variances of long rows, whose chunks are read once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from aten_capture import capture

from treadle_codegen import compile_graph
from treadle_codegen.costs import Costs
from treadle_codegen.interpret import interpret
from treadle_codegen.ir.loops import Loop, Program
from treadle_codegen.ir.ops import BUFFER_DTYPES
from treadle_codegen.ir.verify import verify
from treadle_codegen.lower import lower_graph
from treadle_codegen.schedule.access import loop_reads, step_along

COSTS = Costs(split_work=8, min_parallel=8, held_row=16, max_row=64)

MOMENTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "variance of all": lambda x: x.var(),
    "deviation of rows": lambda x: x.flatten(1).std(1, correction=0),
    "mean and variance of columns": lambda x: torch.var_mean(x.flatten(1), 0),
    "of two dimensions in the middle": lambda x: torch.var_mean(x, (1, 2), keepdim=True),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "group norm": lambda x: F.group_norm(x, 2),
    "layer norm": lambda x: F.layer_norm(x, x.shape[1:]),
}


def lowered(fn: Callable[..., Any], x: torch.Tensor, costs: Costs = COSTS) -> Program:
    return lower_graph(capture(fn, [x]), costs=costs, dtypes=frozenset(BUFFER_DTYPES))


def reductions_of_input(program: Program) -> list[Loop]:
    (x,) = program.inputs
    loops = [step for step in program.steps if isinstance(step, Loop) and step.reduce_axes]
    return [loop for loop in loops if x in {read.buffer for read in loop_reads(loop)}]


@pytest.mark.parametrize("shape", [(8, 4, 6, 4), (3, 2, 16, 16), (7, 4, 11, 5), (1, 2, 64, 3)])
@pytest.mark.parametrize("name", MOMENTS)
@pytest.mark.parametrize("is_channels_last", [False, True])
def test_chunks_give_the_moments_of_rows(name: str, shape: tuple[int, ...], is_channels_last: bool) -> None:
    x = torch.randn(shape) * 2 + 50
    x = x.contiguous(memory_format=torch.channels_last) if is_channels_last else x
    program = lowered(MOMENTS[name], x)
    assert verify(program) == []
    expected = MOMENTS[name](x.double())
    results = interpret(program, [x])
    for result, wanted in zip(results, expected if isinstance(expected, tuple) else [expected], strict=True):
        torch.testing.assert_close(result.double(), wanted, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_chunks_are_read_by_loops_over_the_same_chunks() -> None:
    first, second = reductions_of_input(lowered(lambda x: x.var(), torch.randn(64, 32)))
    assert [a.extent for a in first.axes] == [a.extent for a in second.axes] and len(first.axes) == 2
    assert [a.extent for a in first.reduce_axes] == [a.extent for a in second.reduce_axes]


@pytest.mark.parametrize("shape", [(2048, 8), (13, 11)])
def test_short_rows_and_odd_lengths_stay_whole(shape: tuple[int, ...]) -> None:
    for loop in reductions_of_input(lowered(lambda x: x.var(1), torch.randn(shape))):
        assert [a.extent for a in loop.axes] == [shape[0]]


@pytest.mark.parametrize("groups", [1, 2, 4, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_groups_of_channels_last_are_read_along_memory(groups: int, dtype: torch.dtype) -> None:
    x = (torch.randn(3, 8, 5, 7) * 2 + 10).to(dtype).contiguous(memory_format=torch.channels_last)
    weight, bias = torch.randn(8).to(dtype), torch.randn(8).to(dtype)

    def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.group_norm(x, groups, weight, bias)

    tensors = [x, weight, bias]
    graph = capture(norm, tensors)
    program = lower_graph(graph, costs=Costs(moments_across=True), dtypes=frozenset(BUFFER_DTYPES))
    assert verify(program) == []
    read = [loop for loop in program.steps if isinstance(loop, Loop) and loop.reduce_axes]
    for loop in [loop for loop in read if program.inputs[0] in {access.buffer for access in loop_reads(loop)}]:
        (access,) = [access for access in loop_reads(loop) if access.buffer == program.inputs[0]]
        assert step_along(access.index, loop.axes[-1]) == 1
    (found,) = interpret(program, tensors)
    tolerance = 2e-2 if dtype is torch.bfloat16 else 1e-5
    torch.testing.assert_close(found.double(), norm(*[t.double() for t in tensors]), rtol=tolerance, atol=4 * tolerance)


def test_rows_that_lie_along_memory_stay_whole() -> None:
    x = torch.randn(3, 8, 5, 7)
    for norm in (lambda x: F.layer_norm(x, x.shape[2:]), lambda x: F.group_norm(x, 2), lambda x: x.var((0, 3))):
        whole, cut = [len(lowered(norm, x, Costs(moments_across=across)).steps) for across in (False, True)]
        assert whole == cut


def test_targets_that_hold_no_rows_do_not_cut_them() -> None:
    program = lowered(lambda x: x.var(), torch.randn(64, 32), Costs())
    assert all(not loop.axes for loop in reductions_of_input(program))


def test_infinity_and_nan_reach_the_results() -> None:
    x = torch.randn(64, 32)
    x[3, 4] = torch.inf
    mean, variance = lambda x: torch.var_mean(x)[1], lambda x: x.var()
    assert interpret(lowered(mean, x), [x])[0].isinf() and interpret(lowered(variance, x), [x])[0].isnan()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["deviation", "deviation of rows", "mean and deviation of columns"])
def test_deviations_whose_squares_are_no_floats(name: str, dtype: torch.dtype) -> None:
    """ATen's kernels for CPUs compute in float64."""
    function = {
        "deviation": lambda x: (x.std(),),
        "deviation of rows": lambda x: (x.std(1),),
        "mean and deviation of columns": lambda x: torch.std_mean(x, 0),
    }[name]
    x = (torch.randn(24, 16) * 1e30).to(dtype)
    program = lowered(function, x, replace(COSTS, wide_moments=True))
    assert verify(program) == []
    for result, wanted in zip(interpret(program, [x]), function(x.double()), strict=True):
        torch.testing.assert_close(result, wanted.to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["layer norm", "group norm", "batch norm", "layer norm of a view"])
def test_equal_elements_differ_from_their_mean_by_nothing(name: str, dtype: torch.dtype) -> None:
    """What is left would be divided by the square root of `eps`."""
    scale, shift = torch.randn(4).to(dtype), torch.randn(4).to(dtype)
    norms: dict[str, Callable[..., Any]] = {
        "layer norm": lambda y, w, b: F.layer_norm(y, (1,), w[:1], b[:1]),
        "group norm": lambda y, w, b: F.group_norm(y.transpose(0, 1), 4, w, b),
        "batch norm": lambda y, w, b: F.batch_norm(y.transpose(0, 1), None, None, w, b, training=True),
        "layer norm of a view": lambda y, w, b: F.layer_norm(
            y[:, None].expand(4, 3, 1).flatten(1, 2), (3,), w[:3], b[:3]
        ),
    }

    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        y = x * 1.1
        return norms[name](y if name.startswith("layer") else y.expand(4, 5), w, b)

    x = torch.randn(4, 1).to(dtype)
    (found,) = compile_graph(capture(fn, [x, scale, shift]), [x, scale, shift])(x, scale, shift)
    torch.testing.assert_close(found, fn(x, scale, shift), rtol=1e-2, atol=1e-3)
