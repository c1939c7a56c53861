"""Writes to parts of tensors: in memory where nobody needs the old value, in a copy where somebody does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from aten_capture import capture

from treadle_codegen import compile_graph
from treadle_codegen.interpret import interpret
from treadle_codegen.ir.loops import Loop, Program
from treadle_codegen.ir.verify import verify
from treadle_codegen.lower import lower_graph

aten = torch.ops.aten
X = torch.randn(6, 8)


def lowered(function: Any, *tensors: torch.Tensor) -> Program:
    graph = capture(function, tensors)
    program = lower_graph(graph, tensors)
    assert verify(program) == []
    expected = function(*tensors)
    expected = expected if isinstance(expected, (tuple, list)) else [expected]
    for actual, compiled, wanted in zip(
        interpret(program, tensors), compile_graph(graph, tensors)(*tensors), expected, strict=True
    ):
        torch.testing.assert_close(actual, wanted)
        torch.testing.assert_close(compiled, wanted)
    return program


def sizes(program: Program) -> list[int]:
    """How many elements each loop stores."""
    found = []
    for loop in program.steps:
        assert isinstance(loop, Loop)
        count = 1
        for axis in loop.axes:
            assert isinstance(axis.extent, int)
            count *= axis.extent
        found.append(count)
    return found


def rows(y: torch.Tensor, value: torch.Tensor, start: int, end: int) -> torch.Tensor:
    return aten.slice_scatter(y, value, 0, start, end)


def test_a_chain_of_writes_stores_each_part_once() -> None:
    program = lowered(lambda x: rows(rows(x * 2, x[:1], 1, 2), x[:2], 4, 6), X)
    assert sizes(program) == [48, 8, 16] and len(program.buffers) == 2


def test_a_single_write_is_one_loop() -> None:
    assert sizes(lowered(lambda x: rows(x * 2, x[:1], 1, 2) + 1, X)) == [48]


def test_a_part_of_a_part_stores_the_inner_part_alone() -> None:
    def nested(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        part = y[1:5]
        return rows(y, aten.slice_scatter(part, x[:4, :3], 1, 2, 5), 1, 5)

    assert sizes(lowered(nested, X)) == [48, 12]


def test_a_value_that_is_needed_later_stays() -> None:
    def keeps(x: torch.Tensor) -> Any:
        y = torch.tanh(x)
        z = rows(rows(y, x[:1], 0, 1), x[:1], 2, 3)
        return z, y

    assert sizes(lowered(keeps, X)) == [48, 48, 8, 8]


def test_what_reads_the_old_value_is_stored_before() -> None:
    def reads(x: torch.Tensor) -> Any:
        y = rows(torch.tanh(x), x[:2], 1, 3)
        old = y[0] * 2
        z = rows(y, x[:1], 0, 1)
        return z, old

    assert sizes(lowered(reads, X))[-2:] == [8, 8]


def test_a_write_from_overlapping_elements_goes_through_a_copy() -> None:
    def shifted(x: torch.Tensor) -> torch.Tensor:
        y = rows(torch.tanh(x), x[:1], 0, 1)
        return rows(y, y[:5] * 2, 1, 6)

    assert sizes(lowered(shifted, X)) == [48, 8, 40, 40]


def test_a_write_from_other_elements_of_the_same_memory_does_not() -> None:
    def columns(x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x)
        for k in range(1, 8):
            y = aten.select_scatter(y, y[:, k] + y[:, k - 1], 1, k)
        return y

    assert sizes(lowered(columns, X)) == [48, *[6] * 7]


def test_steps_and_diagonals() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = aten.slice_scatter(x * 2, x[:, ::3], 1, 1, 8, 3)
        return aten.diagonal_scatter(y, x[0, :6])

    assert sizes(lowered(f, X)) == [48, 18, 6]


def test_an_element_written_to_itself_is_no_work() -> None:
    assert sizes(lowered(lambda x: rows(rows(torch.tanh(x), x[:2], 0, 2), x[:2], 0, 2)[1:], X))[0] == 48

    def again(x: torch.Tensor) -> torch.Tensor:
        y = rows(torch.tanh(x), x[:2], 0, 2)
        y = rows(y, x[:1], 3, 4)
        return rows(y, y[1:3], 1, 3)

    assert sizes(lowered(again, X)) == [48, 16, 8]


def test_an_input_is_written_where_it_is() -> None:
    graph = capture(lambda x, v: rows(rows(x, v, 1, 3), v + 1, 3, 5), (X, X[:2]))
    graph.graph.output_node().args[0][0].meta["mutates"] = 0  # type: ignore[index,union-attr]
    compiled = compile_graph(graph, (X, X[:2]))
    x, v = X.clone(), torch.randn(2, 8)
    (out,) = compiled(x, v)
    assert out is x and torch.equal(x, rows(rows(X, v, 1, 3), v + 1, 3, 5))
    assert len(compiled.kernels) == 2


def test_an_input_whose_old_value_is_returned_is_not() -> None:
    graph = capture(lambda x, v: (rows(x, v, 1, 3), x + 0), (X, X[:2]))
    graph.graph.output_node().args[0][0].meta["mutates"] = 0  # type: ignore[index,union-attr]
    x, v = X.clone(), torch.randn(2, 8)
    new, old = compile_graph(graph, (X, X[:2]))(x, v)
    assert torch.equal(old, X) and torch.equal(new, rows(X, v, 1, 3))


@pytest.mark.parametrize(
    "x",
    [torch.arange(1.0, 4.0).expand(3, 3), torch.arange(1.0, 4.0).expand(3, 3).t(), torch.arange(5.0).unfold(0, 3, 1)],
    ids=["expanded rows", "expanded columns", "windows"],
)
def test_a_copy_of_an_input_whose_elements_share_memory_gives_each_its_own(x: torch.Tensor) -> None:
    row, column = torch.tensor([1]), torch.tensor([2])
    lowered(lambda x, i, j: aten.index_put(x, [i, j], x[0, 0] + 9), x, row, column)
    lowered(lambda x, i: aten.index_add(x, 0, i, x[:1] * 3), x, row)
    lowered(lambda x, i: aten.scatter(x, 0, i, x[:1] + 9), x, torch.zeros(1, 3, dtype=torch.int64))


def test_a_diagonal_of_an_expanded_input_is_written_in_a_copy_of_all_its_elements() -> None:
    lowered(lambda x: aten.diagonal_scatter(x, x[0] * 3), torch.arange(1.0, 4.0).expand(3, 3))
