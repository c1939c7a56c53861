"""Recording a loop nest, and the layout of a result that suits what it reads."""

from __future__ import annotations

import torch

from treadle_codegen.ir.loops import IntLike
from treadle_codegen.lower.loop_builder import LoopBuilder
from treadle_codegen.lower.nest import Nest, layout_of_reads, record_nest
from treadle_codegen.lower.tensor_expr import Index


def nest(shape: tuple[IntLike, ...], strides: tuple[IntLike, ...], *reads: tuple[IntLike, ...]) -> Nest | None:
    """A nest that adds up elements of one buffer per tuple of strides."""

    def element(o: LoopBuilder, index: Index, reduced: dict[int, IntLike]) -> int:
        value = o.const(0.0, torch.float32)
        for k, read in enumerate(reads):
            at: IntLike = 0
            for i, s in zip(index, read, strict=True):
                at = at + i * s
            value = o.op("add", value, o.load(f"b{k}", at, torch.float32))
        return value

    return record_nest(shape, strides, element, {})


def test_axes_go_from_the_slowest_to_the_fastest_and_sizes_of_one_have_none() -> None:
    made = nest((4, 1, 8), (1, 1, 4))
    assert made is not None
    assert [axis.extent for axis in made.axes] == [8, 4] and made.dims == (2, 0)
    assert made.index[1] == 0


def test_a_result_without_elements_has_no_nest() -> None:
    assert nest((4, 0), (0, 1)) is None
    assert layout_of_reads(None, (4, 0), 0) is None


def test_the_result_takes_the_order_of_its_only_read() -> None:
    made = nest((32, 64), (64, 1), (1, 32))
    assert layout_of_reads(made, (32, 64), 1024) == (1, 32)
    assert layout_of_reads(made, (32, 64), 4096) is None  # small enough to stay in the cache


def test_one_read_in_order_decides() -> None:
    assert layout_of_reads(nest((32, 64), (64, 1), (1, 32), (64, 1)), (32, 64), 0) is None


def test_what_is_the_same_along_an_axis_does_not_count() -> None:
    assert layout_of_reads(nest((32, 64), (64, 1), (1, 32), (1, 0)), (32, 64), 0) == (1, 32)
    assert layout_of_reads(nest((32, 64), (64, 1), (1, 0)), (32, 64), 0) is None


def test_reads_that_are_dense_along_no_axis_decide_nothing() -> None:
    assert layout_of_reads(nest((32, 64), (64, 1), (2, 64)), (32, 64), 0) is None
