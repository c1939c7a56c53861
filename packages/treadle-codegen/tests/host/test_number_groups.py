"""Float numbers that kernels read off tensors, compute and check: Python's results to the bit, and Python's exceptions."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from aten_capture import capture

from treadle_codegen import CodegenOptions, CompiledGraph, compile_graph
from treadle_shapes import ShapeEnv
from treadle_shapes.torch import fake_mode, fake_shape_env, fake_tensor, symbolic_dispatch


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def compiled(fn: Callable[..., Any], *inputs: torch.Tensor, cache: Path) -> CompiledGraph:
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env, allow_scalar_outputs=True))
    fakes = [fake_tensor(mode, x, (None,) * x.dim()) for x in inputs]
    with symbolic_dispatch():
        graph = capture(fn, fakes, mode=mode)
    return compile_graph(graph, inputs, options=CodegenOptions(threads=1, cache_dir=cache, verify=True))


def correction(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """What Adam does with the number of the step."""
    step = (t + 1).item()
    return x * (0.001 / (1 - 0.9**step)) + (1 - 0.999**step) ** 0.5


def outcome(run: Callable[..., Any], *inputs: torch.Tensor) -> Any:
    try:
        (result,) = run(*inputs)
    except (ArithmeticError, ValueError, RuntimeError) as error:
        return type(error), str(error)
    return result.tolist()


def test_numbers_are_pythons_to_the_bit(cache: Path) -> None:
    x = torch.randn(7, dtype=torch.float64)
    for dtype in (torch.float32, torch.float64):
        run = compiled(correction, x, torch.tensor(1.0, dtype=dtype), cache=cache)
        assert "recheck" in run.host_source and "item" not in run.host_source
        for step in (*range(1, 40), 100, 12345, 10**6, 0.5, 1e-9, 3.7e12):
            t = torch.tensor(float(step), dtype=dtype)
            assert outcome(run, x, t) == outcome(lambda *a: [correction(*a)], x, t)


@pytest.mark.parametrize("value", [-1.0, math.inf, -math.inf, math.nan, -1e5, -2.5, -1 + 1e-12, 1e300])
def test_unusual_numbers_are_pythons_and_the_next_call_is_right(value: float, cache: Path) -> None:
    x = torch.randn(7, dtype=torch.float64)
    run = compiled(correction, x, torch.tensor(1.0, dtype=torch.float64), cache=cache)
    eager = lambda *a: [correction(*a)]  # noqa: E731
    t = torch.tensor(value, dtype=torch.float64)
    if 1 - 0.999 ** (value + 1) >= 0:
        assert str(outcome(run, x, t)) == str(outcome(eager, x, t))
    else:  # the root would be a complex number, of which the graph is none
        assert outcome(run, x, t)[0] is RuntimeError
    t.fill_(3.0)
    assert outcome(run, x, t) == outcome(eager, x, t)


def chained(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    first = (t * 2).item()
    second = (t * (1 / first)).item()
    return x + second * first


def test_numbers_that_need_others(cache: Path) -> None:
    x = torch.randn(7, dtype=torch.float64)
    run = compiled(chained, x, torch.tensor(1.0, dtype=torch.float64), cache=cache)
    for value in (1.0, 0.3, 1e-310, 0.0, math.nan, 5.0):
        t = torch.tensor(value, dtype=torch.float64)
        assert str(outcome(run, x, t)) == str(outcome(lambda *a: [chained(*a)], x, t))


def test_one_function_for_many_numbers(cache: Path) -> None:
    def many(x: torch.Tensor, *steps: torch.Tensor) -> torch.Tensor:
        for step in steps:
            x = x * (1 - 0.9 ** (step + 1).item())
        return x

    x, steps = torch.randn(7), [torch.tensor(float(k + 1)) for k in range(5)]
    run = compiled(many, x, *steps, cache=cache)
    kernels = {kernel.function for kernel in run.kernels if kernel.results}
    assert len(kernels) == 1 and len([kernel for kernel in run.kernels if kernel.results]) == 5
    assert run.host_source.count("segment_1(") == 1 and "segment_2" not in run.host_source
    assert torch.equal(run(x, *steps)[0], many(x, *steps))


def test_a_number_that_is_returned_or_taken_by_an_operator(cache: Path) -> None:
    def returned(x: torch.Tensor, t: torch.Tensor) -> tuple[Any, ...]:
        number = (t + 1).item()
        return x * number, number * 2, torch.ops.aten.full.default([2], number)

    x, t = torch.randn(7), torch.tensor(2.5)
    found = compiled(returned, x, t, cache=cache)(x, t)
    assert torch.equal(found[0], x * 3.5) and found[1] == 7.0 and found[2].tolist() == [3.5, 3.5]


def test_of_several_checks_that_fail_the_first_raises(cache: Path) -> None:
    def checked(x: torch.Tensor, s: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        first, second = s.item(), t.item()
        torch._assert_scalar(first > 0, "first is negative")
        torch._assert_scalar(second > 0, "second is negative")
        torch._assert_scalar(first < 5, "first is large")
        return x * first * second

    x = torch.randn(7, dtype=torch.float64)
    run = compiled(checked, x, torch.tensor(1.0), torch.tensor(1.0), cache=cache)
    assert "recheck" in run.host_source
    for s, t in ((2.0, 3.0), (7.0, 1.0), (7.0, -1.0), (-7.0, -1.0), (1.0, -1.0), (2.0, 2.0)):
        numbers = torch.tensor(s), torch.tensor(t)
        assert outcome(run, x, *numbers) == outcome(lambda *a: [checked(*a)], x, *numbers)
