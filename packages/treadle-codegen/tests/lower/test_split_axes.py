"""Axes are split where index expressions divide them, and only there."""

from __future__ import annotations

import torch

from treadle_codegen.ir.loops import Axis, Instr, Load, Loop, Store
from treadle_codegen.lower.split_axes import split_axes
from treadle_shapes.expr import symbol


def copy_loop(extent: int, index: object) -> Loop:
    i = symbol("i0", 0, extent - 1)
    body = (
        Instr("load", (), torch.float32, Load("x", index(i))),  # type: ignore[operator]
        Instr("store", (0,), torch.float32, Store("y", i)),
    )
    return Loop("copy", (Axis(i, extent),), (), body)


def test_a_transposition_of_a_flat_axis() -> None:
    loop = split_axes(copy_loop(96, lambda i: i // 12 + 8 * (i % 12)))
    assert [axis.extent for axis in loop.axes] == [8, 12]
    a, b = (axis.symbol for axis in loop.axes)
    assert loop.body[0].attr.index == a + 8 * b
    assert loop.body[1].attr.index == 12 * a + b


def test_three_levels() -> None:
    loop = split_axes(copy_loop(24, lambda i: i % 2 * 12 + i // 2 % 3 * 4 + i // 6))
    assert [axis.extent for axis in loop.axes] == [4, 3, 2]
    assert "//" not in str(loop)


def test_what_does_not_divide_stays() -> None:
    loop = copy_loop(10, lambda i: (i + 3) % 7)
    assert split_axes(loop) == loop
