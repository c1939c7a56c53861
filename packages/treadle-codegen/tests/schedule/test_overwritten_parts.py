"""Loops that leave out what others write over: the same values from fewer points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from aten_capture import capture
from dynamic_cases import capture_dynamic
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle_codegen.costs import Costs
from treadle_codegen.interpret import interpret
from treadle_codegen.ir.loops import Loop, Program
from treadle_codegen.ir.verify import verify
from treadle_codegen.lower import lower_graph
from treadle_codegen.schedule.overwritten_parts import leave_out_overwritten, why_not_cut

COSTS = Costs(overwritten_bytes=1)


def points_of(program: Program) -> int:
    """The points of all loops."""
    total = 0
    for step in program.steps:
        if isinstance(step, Loop):
            points = 1
            for axis in step.axes:
                assert isinstance(axis.extent, int)
                points *= axis.extent
            total += points
    return total


def check(fn: Callable[..., Any], *inputs: torch.Tensor, costs: Costs = COSTS) -> tuple[int, int]:
    """The points of all loops before and after, whose results are those of eager."""
    program = lower_graph(capture(fn, list(inputs)))
    before = points_of(program)
    leave_out_overwritten(program, costs)
    assert verify(program) == []
    (result,) = interpret(program, list(inputs))
    torch.testing.assert_close(result, fn(*inputs), rtol=0, atol=0)
    return before, points_of(program)


def put(y: torch.Tensor, box: Sequence[tuple[int, int]], value: torch.Tensor, d: int = 0) -> torch.Tensor:
    """`y` with `value` in a box, as functionalisation writes `y[a:b, c:d] = value`."""
    (start, end), is_last = box[d], d == len(box) - 1
    inner = value if is_last else put(torch.ops.aten.slice(y, d, start, end), box, value, d + 1)
    return torch.ops.aten.slice_scatter(y, inner, d, start, end)


def interior(x: torch.Tensor) -> torch.Tensor:
    return put(torch.zeros_like(x), [(1, 5), (1, 6)], x[2:, 1:-1] - x[:-2, 1:-1])


def of_a_copy(x: torch.Tensor) -> torch.Tensor:
    return put(x.clone(), [(1, 5), (2, 5)], x[:4, :3] * 2)


def corners(x: torch.Tensor) -> torch.Tensor:
    return put(put(x + 1, [(0, 2), (0, 2)], x[2:4, 2:4]), [(4, 6), (4, 7)], x[:2, :3])


def everything(x: torch.Tensor) -> torch.Tensor:
    return put(put(x.exp(), [(0, 3)], x[:3] * 2), [(3, 6)], x[3:] * 3)


def cube(x: torch.Tensor) -> torch.Tensor:
    x = x.expand(4, 6, 7)
    return put(torch.ones_like(x).clone(), [(1, 3), (1, 5), (1, 6)], x[1:-1, 1:-1, 1:-1] * 0.5)


LESS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "interior": interior,
    "a copy": of_a_copy,
    "corners": corners,
    "everything": everything,
    "three axes": cube,
}


@pytest.mark.parametrize("name", LESS)
def test_fewer_points_are_computed(name: str) -> None:
    before, after = check(LESS[name], torch.randn(6, 7))
    assert after < before


def test_what_is_written_over_is_left_out_in_full() -> None:
    before, after = check(interior, torch.randn(6, 7))
    assert before - after == 4 * 5


def test_a_loop_that_is_written_over_everywhere_is_gone() -> None:
    before, after = check(everything, torch.randn(6, 7))
    assert before - after == 6 * 7


def test_strips_of_one_width_share_a_loop() -> None:
    program = lower_graph(capture(interior, [torch.randn(6, 7)]))
    leave_out_overwritten(program, COSTS)
    assert [[axis.extent for axis in step.axes] for step in program.steps if isinstance(step, Loop)] == [
        [2, 7],
        [4, 2],
        [4, 5],
    ]


def read_between(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    total = torch.mm(y, y.t()).sum()
    return put(y, [(1, 4), (1, 4)], x[1:4, 1:4] * total)


def adds(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return put(y, [(1, 4), (1, 4)], y[1:4, 1:4] + x[1:4, 1:4])


def steps_of_two(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.slice_scatter(x.exp(), x[::2], 0, 0, 6, 2)


def at_data(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.index_put(x.exp(), [torch.arange(2) * 2], x[:2])


@pytest.mark.parametrize("fn", [read_between, adds, steps_of_two, at_data], ids=lambda fn: fn.__name__)
def test_what_may_be_read_is_computed(fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    before, after = check(fn, torch.randn(6, 7))
    assert after == before


def test_a_part_of_unknown_size_is_computed() -> None:
    def padded(x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros(6, 7)
        return torch.ops.aten.slice_scatter(
            y, torch.ops.aten.slice_scatter(y[: x.shape[0]], x, 1, 0, x.shape[1]), 0, 0, x.shape[0]
        )

    graph, _ = capture_dynamic(padded, lambda n, m: [(n, m)], (4, 5))
    program = lower_graph(graph)
    steps = list(program.steps)
    leave_out_overwritten(program, COSTS)
    assert program.steps == steps


def test_small_parts_are_not_worth_a_loop() -> None:
    x = torch.randn(6, 7)  # 20 elements of 4 bytes are left out, and one loop becomes two
    assert check(interior, x, costs=Costs(overwritten_bytes=81)) == check(interior, x, costs=Costs())
    assert check(interior, x, costs=Costs(overwritten_bytes=80))[1] < check(interior, x, costs=Costs())[1]


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda x: x.sum(0), "depend on each other"),
        (lambda x: x[x[:, 0].long() * 0] * 2, "depend on each other"),
        (lambda x: torch.cat([x, x]), "not those of a dense tensor"),
    ],
    ids=["reduction", "positions that are data", "part of a result"],
)
def test_reasons(fn: Callable[[torch.Tensor], torch.Tensor], reason: str) -> None:
    program = lower_graph(capture(fn, [torch.randn(40, 5)]))
    found = [why_not_cut(program, step) for step in program.steps if isinstance(step, Loop)]
    assert any(reason in (text or "") for text in found), found


def test_an_update_of_an_input_is_left_as_it_is() -> None:
    program = lower_graph(capture(interior, [torch.randn(6, 7)]))
    (first, *_) = (step for step in program.steps if isinstance(step, Loop))
    assert why_not_cut(program, first) is None
    program.updates = {next(iter(out.buffer for out in program.outputs if hasattr(out, "buffer"))): program.inputs[0]}  # type: ignore[union-attr]
    assert "updated where it is" in (why_not_cut(program, first) or "")


@st.composite
def writes(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[tuple[tuple[int, int], ...], int]]]:
    """A shape, and some boxes of it with the number of the value that is written there."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    boxes = []
    for _ in range(draw(st.integers(1, 4))):
        starts = [draw(st.integers(0, n - 1)) for n in shape]
        box = tuple((start, draw(st.integers(start + 1, n))) for start, n in zip(starts, shape, strict=True))
        boxes.append((box, draw(st.integers(1, 3))))
    return shape, boxes


@settings(deadline=None, max_examples=150)
@given(drawn=writes(), transposed=st.booleans())
def test_random_writes(drawn: Any, transposed: bool) -> None:
    shape, boxes = drawn

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 0.5 + 1
        for box, value in boxes:
            y = put(y, box, x[tuple(slice(a, b) for a, b in box)] * value)
        return y

    x = torch.randn(shape)
    check(
        fn,
        x.permute(*reversed(range(len(shape)))).contiguous().permute(*reversed(range(len(shape)))) if transposed else x,
    )
