"""Loops that take their axes in another order to share a kernel with a reduction over a middle axis."""

from __future__ import annotations

import pytest

from treadle_codegen.costs import Costs
from treadle_codegen.ir.loops import Loop
from treadle_codegen.ir.text import parse_program
from treadle_codegen.schedule.axis_order import around_reductions
from treadle_codegen.schedule.fuse import fuse
from treadle_codegen.schedule.kernel import Kernel, single
from treadle_codegen.schedule.verify import verify_schedule

COSTS = Costs(reordered_row=256, min_parallel=1)
CENTRED = """\
program inputs x outputs view(out, [{n}, {c}, {p}], [{cp}, {p}, 1], 0)
input x : float32 [{n}, {c}, {p}] strides [{cp}, {p}, 1] offset 0
temp total : float32 [{n}, {p}] strides [{p}, 1] offset 0
output out : float32 [{n}, {c}, {p}] strides [{cp}, {p}, 1] offset 0
loop sum [i0:{n}, i1:{p}] reduce [i2:{c}] origins a
  %0 = load x[{cp}*i0 + {p}*i2 + i1] : float32
  %1 = reduce sum %0 : float32
  %2 = store total[{p}*i0 + i1] %1 : float32
loop centre [i0:{n}, i1:{c}, i2:{p}] reduce [] origins b
  %0 = load {read}[{cp}*i0 + {p}*i1 + i2] : float32
  %1 = load total[{p}*i0 + i2] : float32
  %2 = sub %0 %1 : float32
  %3 = store out[{cp}*i0 + {p}*i1 + i2] %2 : float32
"""


def text(n: int, c: int, p: int, read: str = "x") -> str:
    return CENTRED.format(n=n, c=c, p=p, cp=c * p, read=read)


def kernels(source: str, costs: Costs = COSTS) -> list[Kernel]:
    program = parse_program(source)
    nodes = fuse(program, parallel=True, costs=costs)
    assert list(verify_schedule(program, nodes)) == []
    return [node.item for node in nodes if isinstance(node.item, Kernel)]


def test_a_norm_over_a_middle_axis_is_one_kernel() -> None:
    assert len(kernels(text(8, 6, 40))) == 1
    assert len(kernels(text(8, 6, 40), Costs())) == 2  # a target whose loops run in order keeps theirs


@pytest.mark.parametrize(("c", "expected"), [(256, 1), (257, 2)])
def test_long_rows_are_not_walked_a_second_time(c: int, expected: int) -> None:
    assert len(kernels(text(8, c, 40))) == expected


def loops(source: str) -> tuple[Kernel, Loop]:
    first, second = [step for step in parse_program(source).steps if isinstance(step, Loop)]
    return single(first), second


def test_axes_of_the_results_come_first() -> None:
    kernel, loop = loops(text(8, 6, 40))
    assert [axis.extent for axis in around_reductions(kernel, loop, 256).axes] == [8, 40, 6]


def test_a_loop_that_reads_other_memory_keeps_its_order() -> None:
    source = text(8, 6, 40, read="y").replace("inputs x", "inputs x, y")
    source = source.replace("temp total", "input y : float32 [8, 6, 40] strides [240, 40, 1] offset 0\ntemp total")
    kernel, loop = loops(source)
    assert around_reductions(kernel, loop, 256) is loop
