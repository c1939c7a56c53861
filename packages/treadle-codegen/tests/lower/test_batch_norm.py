"""Batch norm by the statistics of the batch: one kernel, results and running statistics as eager's."""

from __future__ import annotations

import pytest
import torch
from aten_capture import capture

from treadle_codegen import compile_graph
from treadle_codegen.interpret import interpret
from treadle_codegen.ir.loops import Loop
from treadle_codegen.ir.verify import verify
from treadle_codegen.lower import lower_graph

aten = torch.ops.aten
SHAPES = [(2, 3, 5, 7), (4, 3), (6, 16, 9), (1, 3, 40, 41), (3, 5, 2, 3, 4)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("channels_last", [False, True])
def test_results_and_running_statistics(shape: tuple[int, ...], dtype: torch.dtype, channels_last: bool) -> None:
    if channels_last and len(shape) != 4:
        pytest.skip("four dimensions")
    torch.manual_seed(0)
    x = (torch.randn(shape) * 3 + 5).to(dtype)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    weight, bias, mean, var = [torch.rand(shape[1]).to(dtype) for _ in range(4)]
    arguments = (x, weight, bias, mean, var)

    def function(x: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = aten._native_batch_norm_legit_functional(x, *rest, True, 0.1, 1e-5)
        return results if x.dtype != torch.bfloat16 else (results[0], *results[3:])

    graph = capture(function, arguments)
    program = lower_graph(graph, arguments)
    assert verify(program) == []
    assert all(isinstance(step, Loop) for step in program.steps)
    expected = function(*arguments)
    for found in (interpret(program, arguments), compile_graph(graph, arguments)(*arguments)):
        for a, b in zip(found, expected, strict=True):
            assert a.stride() == b.stride()
            torch.testing.assert_close(
                a.to(b.dtype), b, **({"rtol": 0.02, "atol": 0.02} if dtype is torch.bfloat16 else {})
            )


def test_without_running_statistics_or_weights() -> None:
    x = torch.randn(4, 3, 9, 11)
    for function in (
        lambda x: aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5)[0],
        lambda x: aten.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)[0],
    ):
        graph = capture(function, (x,))
        torch.testing.assert_close(compile_graph(graph, (x,))(x)[0], function(x))


def test_nan_stays_in_its_channel() -> None:
    x = torch.randn(4, 3, 9)
    x[1, 1, 4] = float("nan")
    graph = capture(lambda x: aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5)[0], (x,))
    (found,) = compile_graph(graph, (x,))(x)
    expected = aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5)[0]
    torch.testing.assert_close(found, expected, equal_nan=True)
