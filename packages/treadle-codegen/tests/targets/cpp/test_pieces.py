"""Loops whose positions are clamped or chosen fall into pieces in which they are linear, and give what eager gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from aten_capture import capture
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from treadle_codegen import compile_graph
from treadle_codegen.ir.loops import Axis, Load, Loop
from treadle_codegen.lower import lower_graph
from treadle_codegen.schedule.access import axis_ranges, split_index
from treadle_codegen.schedule.kernel import Section
from treadle_codegen.targets.cpp.pieces import linear_pieces, why_not_cut_at_conditions
from treadle_shapes.expr import Range, simplify


def check(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
    (found,) = compile_graph(capture(function, (x,)), (x,))(x)
    torch.testing.assert_close(found, function(x), rtol=0, atol=0)


def with_threads(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        check(lambda x: function(x.repeat(40, 20, 1)), x)  # enough for both
    finally:
        torch.set_num_threads(before)


def pieces_of(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> list[tuple[int, int]]:
    program = lower_graph(capture(function, (x,)), (x,))
    loop = next(step for step in program.steps if isinstance(step, Loop))
    section = Section(loop.axes, [loop])
    pieces = linear_pieces(section, loop.axes[-1], axis_ranges(loop.axes))
    inside(loop, loop.axes[-1], pieces)
    return pieces


def inside(loop: Loop, axis: Axis, pieces: list[tuple[int, int]]) -> None:
    """Every position of the axis is in one piece, and reads are linear in each."""
    assert [p for first, end in pieces for p in range(first, end)] == list(range(axis.extent)) or not pieces
    for first, end in pieces:
        for instr in loop.body:
            if isinstance(instr.attr, Load):
                index = simplify(instr.attr.index, {**axis_ranges(loop.axes), axis.symbol: Range(first, end - 1)})
                assert split_index(index, [axis.symbol]) is not None


@pytest.mark.parametrize(("mode", "pieces"), [("replicate", 3), ("reflect", 3)])
def test_padding(mode: str, pieces: int) -> None:
    x = torch.randn(2, 3, 8, 9)
    assert len(pieces_of(lambda x: F.pad(x, (2, 1, 1, 2), mode=mode) * 2, x)) == pieces
    check(lambda x: F.pad(x, (2, 1, 1, 2), mode=mode) * 2, x)


def test_sections_of_one_kernel_with_axes_of_different_sizes() -> None:
    """The axes of sections share their symbols: what simplifies positions in one holds for its own extents only."""

    def both(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        image = x + 1
        return image, F.pad(image, (2, 2, 2, 2), mode="replicate"), F.pad(image, (1, 1, 2, 0), mode="replicate")

    x = torch.arange(9.0).reshape(1, 1, 3, 3)
    found = compile_graph(capture(both, (x,)), (x,))(x)
    for ours, eager in zip(found, both(x), strict=True):
        torch.testing.assert_close(ours, eager, rtol=0, atol=0)


def test_rolling_along_the_last_dimension() -> None:
    x = torch.randn(5, 16)
    assert pieces_of(lambda x: x.roll(3, 1) + x, x) == [(0, 3), (3, 16)]
    assert pieces_of(lambda x: x.roll(3, 0) + x, x) == []
    check(lambda x: x.roll(-5, 1) + x.roll(2, 1), x)


def test_sums_are_left_whole() -> None:
    x = torch.randn(4, 8)
    assert pieces_of(lambda x: F.pad(x, (2, 2), mode="reflect").sum(-1), x) == []
    check(lambda x: F.pad(x, (2, 2), mode="replicate").amax(-1), x)


@given(
    rows=st.integers(1, 4),
    length=st.integers(2, 20),
    amounts=st.tuples(st.integers(0, 19), st.integers(0, 19)),
    mode=st.sampled_from(["replicate", "reflect", "roll", "roll twice"]),
)
@settings(max_examples=60, deadline=None)
def test_any_amount(rows: int, length: int, amounts: tuple[int, int], mode: str) -> None:
    x = torch.randn(rows, length)
    if mode == "reflect":
        amounts = (amounts[0] % length, amounts[1] % length)

    def function(x: torch.Tensor) -> torch.Tensor:
        if mode.startswith("roll"):
            rolled = x.roll(amounts[0], -1) + x
            return rolled.roll(amounts[1], -1) * x if mode == "roll twice" else rolled
        return F.pad(x, amounts, mode=mode) * 2

    check(function, x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.uint8])
@pytest.mark.parametrize("width", [5, 14, 57, 130])
def test_reads_under_conditions(dtype: torch.dtype, width: int) -> None:
    """Cut or not, and with threads that share the rows, neighbours beyond an end are zeros."""

    def neighbours(x: torch.Tensor) -> torch.Tensor:
        return x + F.pad(x[..., 1:], (0, 1)) + F.pad(x[..., :-1], (1, 0)) + F.pad(x[..., 1:, :], (0, 0, 0, 1))

    x = torch.randint(0, 9, (3, 7, width)).to(dtype)
    check(neighbours, x)
    check(lambda x: F.pad(x, (3, 2, 1, 1)) * 2, x)
    with_threads(neighbours, x)


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 1)])
def test_pooling_of_narrow_elements(kernel: int, stride: int) -> None:
    x = torch.randn(2, 3, 20, 61).bfloat16()
    check(lambda x: F.max_pool2d(x, kernel, stride, kernel // 2), x)


def test_narrow_elements_are_read_without_conditions_between_the_ends() -> None:
    x = torch.zeros(4, 61, dtype=torch.bfloat16)
    assert pieces_of(lambda x: F.pad(x, (1, 2)) * 2, x) == [(0, 1), (1, 62), (62, 64)]


def test_short_rows_keep_their_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle_codegen.targets.cpp.pieces.instruction_sets", lambda: ("avx512f", "avx2"))
    assert why_not_cut_at_conditions([], 100) is not None
    assert why_not_cut_at_conditions([4, 4], 56) is not None
    assert why_not_cut_at_conditions([4, 4], 112) is None
    assert why_not_cut_at_conditions([2], 14) is not None
    assert why_not_cut_at_conditions([2, 2], 14) is None
    monkeypatch.setattr("treadle_codegen.targets.cpp.pieces.instruction_sets", lambda: ("avx2",))
    assert why_not_cut_at_conditions([4, 4], 28) is not None
    assert why_not_cut_at_conditions([4, 4], 56) is None
    assert why_not_cut_at_conditions([2], 14) is None
