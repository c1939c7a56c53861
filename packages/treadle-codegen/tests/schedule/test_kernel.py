"""Extent refinement, and which loops can share a kernel."""

from __future__ import annotations

from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treadle_codegen.ir.loops import Axis, Buffer, BufferKind, Instr, Load, Loop, Program, Store, View
from treadle_codegen.schedule.fuse import fuse
from treadle_codegen.schedule.kernel import Kernel, join, refine, single
from treadle_shapes.expr import symbol

F32 = torch.float32
I, J, R = symbol("i"), symbol("j"), symbol("r")
EXTENTS = st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12]), max_size=4).map(tuple)


@given(EXTENTS, EXTENTS)
def test_refine_splits_into_equal_prefixes(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    parts_a, parts_b, shared = refine(a, b)
    assert [prod(p) for p in parts_a] == list(a)
    assert [prod(p) for p in parts_b] == list(b)
    flat_a = [n for p in parts_a for n in p]
    flat_b = [n for p in parts_b for n in p]
    assert flat_a[:shared] == flat_b[:shared]


def test_refine_splits_a_row_axis() -> None:
    assert refine((256, 64), (2, 128)) == ([[2, 128], [64]], [[2], [128]], 2)


def _pointwise(name: str, source: str, target: str, read: object, write: object, axes: tuple[Axis, ...]) -> Loop:
    body = (
        Instr("load", (), F32, Load(source, read)),
        Instr("exp", (0,), F32),
        Instr("store", (1,), F32, Store(target, write)),
    )  # type: ignore[arg-type]
    return Loop(name, axes, (), body)


def _row_sum(name: str, source: str, target: str, rows: int, columns: int) -> Loop:
    body = (
        Instr("load", (), F32, Load(source, columns * I + R)),
        Instr("reduce", (0,), F32, "sum"),
        Instr("store", (1,), F32, Store(target, I + 0)),
    )
    return Loop(name, (Axis(I, rows),), (Axis(R, columns),), body)


ROWS = (Axis(I, 4), Axis(J, 8))


def test_elementwise_consumer_shares_the_inner_loop() -> None:
    kernel = join(
        single(_pointwise("a_0", "x", "t", 8 * I + J, 8 * I + J, ROWS)),
        _pointwise("b_0", "t", "y", 8 * I + J, 8 * I + J, ROWS),
        shared_only=False,
        max_row=1 << 16,
    )
    assert isinstance(kernel, Kernel)
    assert len(kernel.sections) == 1


def test_reduction_then_normalise_needs_a_second_section() -> None:
    kernel = join(
        single(_row_sum("s_0", "x", "s", 4, 8)),
        _pointwise("b_0", "s", "y", I + 0, 8 * I + J, ROWS),
        shared_only=False,
        max_row=1 << 16,
    )
    assert isinstance(kernel, Kernel)
    assert [len(s.axes) for s in kernel.sections] == [1, 1]
    assert [a.extent for a in kernel.outer] == [4]


@pytest.mark.parametrize(
    ("read", "because"),
    [(8 * I + J + 8, "outside the row"), (4 * J + I, "other outer points")],
    ids=["next row", "transposed"],
)
def test_reads_of_other_rows_do_not_fuse(read: object, because: str) -> None:
    producer = single(_row_sum("s_0", "x", "s", 4, 8))
    first = join(producer, _pointwise("a_0", "x", "t", 8 * I + J, 8 * I + J, ROWS), shared_only=False, max_row=1 << 16)
    assert isinstance(first, Kernel)
    reason = join(first, _pointwise("b_0", "t", "y", read, 8 * I + J, ROWS), shared_only=False, max_row=1 << 16)
    assert isinstance(reason, str)
    assert because in reason


def test_a_reduction_below_the_shared_axes_is_refused() -> None:
    reason = join(
        single(_row_sum("s_0", "x", "s", 4, 8)), _row_sum("z_0", "x", "z", 6, 8), shared_only=True, max_row=1 << 16
    )
    assert isinstance(reason, str)


def _buffer(name: str, kind: BufferKind, shape: tuple[int, ...]) -> Buffer:
    strides = tuple(prod(shape[k + 1 :]) for k in range(len(shape)))
    return Buffer(name, F32, shape, strides, kind)


def test_temporaries_inside_a_kernel_leave_memory() -> None:
    buffers = [
        _buffer("x", BufferKind.INPUT, (4, 8)),
        _buffer("t", BufferKind.TEMP, (4, 8)),
        _buffer("y", BufferKind.OUTPUT, (4, 8)),
    ]
    program = Program(
        {b.name: b for b in buffers},
        ("x",),
        (View("y", (4, 8), (8, 1)),),
        [
            _pointwise("a_0", "x", "t", 8 * I + J, 8 * I + J, ROWS),
            _pointwise("b_0", "t", "y", 8 * I + J, 8 * I + J, ROWS),
        ],
    )
    (node,) = fuse(program)
    assert isinstance(node.item, Kernel)
    assert set(node.item.locals) == {"t"}
    assert node.writes == {"y"}
    (section,) = node.item.sections
    assert [a.extent for a in section.axes] == [32], "contiguous rows are walked as one axis"
