"""Writes at positions that are data: as loops that visit their points in order, in eager's order of addition, checked before they write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from aten_capture import capture

from treadle_codegen import compile_graph
from treadle_codegen.costs import Costs
from treadle_codegen.interpret import interpret
from treadle_codegen.ir.loops import Loop
from treadle_codegen.ir.text import format_program, parse_program
from treadle_codegen.ir.verify import verify
from treadle_codegen.lower import lower_graph
from treadle_codegen.options import CodegenOptions

aten = torch.ops.aten
LOOSE = {torch.bfloat16: 0.2, torch.float16: 0.02}
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8)


def made(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    values = torch.randn(shape, generator=generator) * 3
    return values.to(dtype)


def positions(below: int, *shape: int) -> torch.Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(7))


CASES: dict[str, tuple[Callable[..., Any], Callable[[torch.dtype], tuple[torch.Tensor, ...]]]] = {
    "index_add of rows": (
        lambda x, i, y: aten.index_add(x, 0, i, y),
        lambda t: (made(t, 5, 7), positions(5, 40), made(t, 40, 7)),
    ),
    "index_add of columns": (
        lambda x, i, y: aten.index_add(x, -1, i, y),
        lambda t: (made(t, 5, 7), positions(7, 33), made(t, 5, 33)),
    ),
    "index_add in the middle": (
        lambda x, i, y: aten.index_add(x, 1, i, y),
        lambda t: (made(t, 3, 4, 17), positions(4, 9), made(t, 3, 9, 17)),
    ),
    "index_add to a vector": (
        lambda x, i, y: aten.index_add(x, 0, i.int(), y),
        lambda t: (made(t, 5), positions(5, 100), made(t, 100)),
    ),
    "index_copy": (
        lambda x, i, y: aten.index_copy(x, 0, i, y),
        lambda t: (made(t, 5, 7), positions(5, 11), made(t, 11, 7)),
    ),
    "scatter": (
        lambda x, i, y: aten.scatter(x, 1, i, y),
        lambda t: (made(t, 5, 7), positions(7, 4, 30), made(t, 5, 31)),
    ),
    "scatter of a number": (
        lambda x, i: aten.scatter(x, 0, i, 3),
        lambda t: (made(t, 5, 7), positions(5, 3, 6)),
    ),
    "scatter_add": (
        lambda x, i, y: aten.scatter_add(x, 0, i, y),
        lambda t: (made(t, 5, 7), positions(5, 40, 7), made(t, 40, 7)),
    ),
    **{
        f"scatter_reduce {kind}": (
            lambda x, i, y, kind=kind: aten.scatter_reduce(x, 0, i, y, kind),
            lambda t: (made(t, 5, 7), positions(5, 4, 7), made(t, 4, 7)),
        )
        for kind in ("sum", "amax", "amin", "prod")
    },
    "index_put": (
        lambda x, i, y: aten.index_put(x, [None, i - 4], y),
        lambda t: (made(t, 3, 4, 5), positions(8, 6), made(t, 3, 6, 5)),
    ),
    "index_put accumulates": (
        lambda x, i, j, y: aten.index_put(x, [i, j], y, True),
        lambda t: (made(t, 6, 7, 5), positions(6, 3, 1), positions(7, 1, 20), made(t, 5)),
    ),
    "index_put of one value": (
        lambda x, i: aten.index_put(x, [i], x.new_full((), 2)),
        lambda t: (made(t, 6, 3), positions(6, 4)),
    ),
    "from a part of what is written to": (
        lambda x, i: aten.index_add(x * 2, 0, i, (x * 2)[:4]),
        lambda t: (made(t, 6, 3), positions(6, 4)),
    ),
    "twice, of what is computed": (
        lambda x, i, y: aten.index_add(aten.index_add(x + 1, 0, i, y * 2), 0, i, y + 1) * 2,
        lambda t: (made(t, 5, 7), positions(5, 40), made(t, 40, 7)),
    ),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: str(t)[6:])
@pytest.mark.parametrize("case", CASES)
def test_the_values_are_eagers(case: str, dtype: torch.dtype) -> None:
    function, arguments = CASES[case]
    tensors = arguments(dtype)
    graph = capture(function, tensors)
    program = lower_graph(graph, tensors, Costs(scatters_in_order=True))
    assert verify(program) == []
    assert all(isinstance(step, Loop) for step in program.steps)
    text = format_program(program)
    assert format_program(parse_program(text)) == text
    before = [t.clone() for t in tensors]
    # Eager rounds 16-bit sums after every addition in some of its kernels, and once at the end in others.
    loose = LOOSE.get(dtype)
    exact = function(*[t.double() if t.is_floating_point() else t for t in tensors]).to(dtype)
    expected = function(*tensors) if loose is None else exact
    for (found,) in (interpret(program, tensors), compile_graph(graph, tensors)(*tensors)):
        torch.testing.assert_close(found, expected, rtol=loose and 0.01, atol=loose)
    torch.testing.assert_close(tensors, tuple(before), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["amax", "amin", "sum"])
def test_nan_and_infinity_stay(kind: str) -> None:
    x = torch.tensor([0.0, float("nan"), 1.0, float("inf"), -float("inf")])
    i, y = torch.tensor([0, 1, 2, 3, 4, 2, 3]), torch.tensor([float("nan"), 1.0, float("nan"), 1.0, 2.0, 5.0, 7.0])
    graph = capture(lambda x, i, y: aten.scatter_reduce(x, 0, i, y, kind), (x, i, y))
    (found,) = compile_graph(graph, (x, i, y))(x, i, y)
    torch.testing.assert_close(found, aten.scatter_reduce(x, 0, i, y, kind), equal_nan=True)


def test_threads_add_in_order() -> None:
    x, i, y = made(torch.float32, 4, 300), positions(4, 500), made(torch.float32, 500, 300)
    for function in (
        lambda x, i, y: aten.index_add(x, 0, i, y),
        lambda x, i, y: aten.scatter_add(x, 0, i[:, None].expand(500, 300), y),
        lambda x, i, y: aten.index_add(x[:, 0], 0, i, y[:, 1]),
    ):
        graph = capture(function, (x, i, y))
        (found,) = compile_graph(graph, (x, i, y), options=CodegenOptions(threads=2))(x, i, y)
        torch.testing.assert_close(found, function(x, i, y), rtol=1e-6, atol=1e-5)


def updating(function: Callable[..., Any], tensors: tuple[torch.Tensor, ...]) -> Any:
    """The compiled graph, whose first result is the new value of the first input."""
    graph = capture(function, tensors)
    output = graph.graph.output_node().args[0]
    first = output[0] if isinstance(output, (tuple, list)) else output
    first.meta["mutates"] = 0
    return compile_graph(graph, tensors, options=CodegenOptions(verify=True))


def test_an_input_is_written_where_it_is() -> None:
    x, i, y = made(torch.float32, 5, 7), positions(5, 9), made(torch.float32, 9, 7)
    run = updating(lambda x, i, y: aten.index_add(x, 0, i, y * 2), (x, i, y))
    expected, memory = aten.index_add(x, 0, i, y * 2), x.data_ptr()
    (found,) = run(x, i, y)
    assert found.data_ptr() == memory
    torch.testing.assert_close(x, expected)


@pytest.mark.parametrize("wrong", [5, -1])
def test_nothing_is_written_where_a_position_is_out_of_range(wrong: int) -> None:
    x, i, y = made(torch.float32, 5, 7), positions(5, 9), made(torch.float32, 9, 7)
    run = updating(lambda x, i, y: aten.index_add(x, 0, i, y), (x, i, y))
    before = x.clone()
    i[8] = wrong
    with pytest.raises(IndexError, match="index out of range"):
        run(x, i, y)
    assert torch.equal(x, before)
    i[8] = 0
    torch.testing.assert_close(run(x, i, y)[0], aten.index_add(before, 0, i, y))


def test_nothing_is_written_after_another_read_was_out_of_range() -> None:
    x, i, w = made(torch.float32, 5), torch.tensor([0, 9]), made(torch.float32, 4, 3)
    graph = capture(lambda x, i, w: (aten.add(x, aten.index(w, [i]).sum()), aten.mul(w, 2)), (x, i - i, w))
    output = graph.graph.output_node().args[0]
    output[0].meta["mutates"] = 0  # type: ignore[index]
    run = compile_graph(graph, (x, i - i, w), options=CodegenOptions(verify=True))
    before = x.clone()
    with pytest.raises(IndexError):
        run(x, i, w)
    assert torch.equal(x, before)
