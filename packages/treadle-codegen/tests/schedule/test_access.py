"""What loops read and write, and how index expressions relate."""

from __future__ import annotations

import pytest

from treadle_codegen.ir.loops import Axis
from treadle_codegen.ir.text import parse_program
from treadle_codegen.schedule.access import (
    accumulates,
    dense_extent,
    interval,
    loop_reads,
    loop_writes,
    rename_loop,
    split_index,
    step_reads,
    step_writes,
)
from treadle_shapes.expr import symbol

TEXT = """\
program inputs x, n outputs view(out, [4], [1], 0)
input x : float32 [4, 8] strides [8, 1] offset 0
input n : int64 [4] strides [1] offset 0
output out : float32 [4] strides [1] offset 0
loop mixed [i0:4] reduce [r0:8] origins a
  %0 = load x[8*i0 + r0] : float32
  %1 = masked_load x[8*i0 + r0 + 1] if r0 <= 6 else 0 : float32
  %2 = add %0 %1 : float32
  %3 = reduce sum %2 : float32
  %4 = load n[i0] : int64
  %5 = indirect_load x strides [8, 1] sizes [4, 8] %4 %4 : float32
  %6 = add %3 %5 : float32
  %7 = store out[i0] %6 : float32
loop adding [i0:4] reduce [] origins b
  %0 = load n[i0] : int64
  %1 = const 1.0 : float32
  %2 = indirect_store out strides [1] sizes [4] add %1 %0 : float32
extern product aten.mm.default (view(x, [4, 8], [8, 1], 0), [view(n, [4], [1], 0)]) {} -> out, _ origins c
"""
MIXED, ADDING, PRODUCT = parse_program(TEXT).steps
I, J = symbol("i", 0, 3), symbol("j", 0, 7)
AXES = (Axis(I, 4), Axis(J, 8))


def test_reads_and_writes_of_loops() -> None:
    reads = loop_reads(MIXED)  # type: ignore[arg-type]
    assert [(a.buffer, a.position, a.index is None) for a in reads] == [
        ("x", 0, False), ("x", 1, False), ("n", 4, False), ("x", 5, True),
    ]  # fmt: skip
    assert [(a.buffer, a.index is None) for a in loop_writes(MIXED)] == [("out", False)]  # type: ignore[arg-type]
    assert [(a.buffer, a.index is None) for a in loop_writes(ADDING)] == [("out", True)]  # type: ignore[arg-type]


def test_a_loop_that_scatters_reads_what_it_writes() -> None:
    assert accumulates(ADDING) and not accumulates(MIXED)  # type: ignore[arg-type]
    assert step_reads(ADDING) == {"n", "out"} and step_writes(ADDING) == {"out"}


def test_externs_read_the_views_among_their_arguments() -> None:
    assert step_reads(PRODUCT) == {"x", "n"} and step_writes(PRODUCT) == {"out", ""}


@pytest.mark.parametrize(
    ("index", "wanted"),
    [(8 * I + J, ((8,), J)), (J + 5, ((0,), J + 5)), (7, ((0,), 7)), (I * I, None), ((I + 1) // 2, None)],
)
def test_split_index(index: object, wanted: object) -> None:
    assert split_index(index, [I]) == wanted  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rest", "wanted"),
    [(8 * I + J, (0, 32)), (8 * I + J + 3, (3, 32)), (I + 4 * J, (0, 32)), (9 * I + J, None), (2 * J + 16 * I, None)],
)
def test_dense_extent(rest: object, wanted: object) -> None:
    assert dense_extent(rest, AXES) == wanted  # type: ignore[arg-type]


def test_interval_over_axes() -> None:
    assert interval(8 * I + J - 1, AXES) == (-1, 30)
    assert interval(5, AXES) == (5, 5)
    assert interval(I + symbol("s"), AXES) is None


def test_renaming_proves_masks_over_the_new_axes() -> None:
    i0, r0 = MIXED.axes[0].symbol, MIXED.reduce_axes[0].symbol  # type: ignore[union-attr]
    short = rename_loop(MIXED, {i0: I, r0: J}, (Axis(I, 4),), (Axis(J, 6),))  # type: ignore[arg-type]
    assert [instr.op for instr in short.body[:2]] == ["load", "load"]
    assert short.body[0].attr.index == 8 * I + J
