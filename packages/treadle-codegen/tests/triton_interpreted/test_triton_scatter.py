"""Writes at positions that are data, as Triton kernels: sums by atomic operations, everything else that eager orders by ATen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from aten_capture import capture

from treadle_codegen import CompiledGraph, compile_graph

aten = torch.ops.aten


def compiled(fn: Callable[..., Any], *inputs: Any) -> CompiledGraph:
    return compile_graph(capture(fn, list(inputs)), list(inputs))


@pytest.fixture
def arguments() -> tuple[torch.Tensor, ...]:
    return torch.randn(6, 5), torch.randint(6, (40,)), torch.randn(40, 5)


def test_sums_are_atomic(arguments: tuple[torch.Tensor, ...]) -> None:
    run = compiled(lambda x, i, y: aten.index_add(x, 0, i, y * 2), *arguments)
    assert "atomic_add(" in run.source and len(run.kernels) == 2
    torch.testing.assert_close(run(*arguments)[0], arguments[0].index_add(0, arguments[1], arguments[2] * 2))


def test_one_number_is_added_in_many_places(arguments: tuple[torch.Tensor, ...]) -> None:
    x, i, y = arguments[0], arguments[1], arguments[2][:, :1]
    for fn in (
        lambda x, i, y: aten.index_add(x, 0, i, torch.ones(40, 5)),
        lambda x, i, y: aten.index_add(x, 0, i, y.expand(40, 5)),
    ):
        torch.testing.assert_close(compiled(fn, x, i, y)(x, i, y)[0], fn(x, i, y))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_16_bit_numbers_are_rounded_once(dtype: torch.dtype, arguments: tuple[torch.Tensor, ...]) -> None:
    x, i, y = arguments
    x, y = x.to(dtype), y.to(dtype)
    for fn in (lambda x, i, y: aten.index_add(x, 0, i, y), lambda x, i, y: aten.index_put(x, [i], y, True)):
        run = compiled(fn, x, i, y)
        assert "atomic_add(" in run.source
        expected = x.double().index_add(0, i, y.double()).to(dtype)
        torch.testing.assert_close(run(x, i, y)[0], expected, rtol=torch.finfo(dtype).eps, atol=1e-3)


def test_deterministic_algorithms_are_eagers(arguments: tuple[torch.Tensor, ...]) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        run = compiled(lambda x, i, y: aten.index_add(x, 0, i, y), *arguments)
    finally:
        torch.use_deterministic_algorithms(False)
    assert "atomic_add(" not in run.source
    torch.testing.assert_close(run(*arguments)[0], arguments[0].index_add(0, *arguments[1:]))


@pytest.mark.parametrize("kind", ["amax", "prod"])
def test_what_has_no_atomic_operation_is_eagers(kind: str, arguments: tuple[torch.Tensor, ...]) -> None:
    x, i, y = arguments
    at = i[:, None].expand(40, 5)
    run = compiled(lambda x, i, y: aten.scatter_reduce(x, 0, i, y, kind), x, at, y)
    assert "atomic_add(" not in run.source
    torch.testing.assert_close(run(x, at, y)[0], x.scatter_reduce(0, at, y, kind))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
def test_small_integers_are_eagers(dtype: torch.dtype) -> None:
    x, i, y = torch.zeros(6, dtype=dtype), torch.randint(6, (40,)), torch.ones(40, dtype=dtype)
    run = compiled(lambda x, i, y: aten.index_add(x, 0, i, y), x, i, y)
    assert torch.equal(run(x, i, y)[0], x.index_add(0, i, y))


@pytest.mark.parametrize("wrong", [6, -1])
def test_positions_out_of_range_raise(wrong: int, arguments: tuple[torch.Tensor, ...]) -> None:
    x, i, y = arguments
    run = compiled(lambda x, i, y: aten.index_add(x, 0, i, y), x, i, y)
    i[7] = wrong
    with pytest.raises(Exception, match="index out of range"):
        run(x, i, y)
