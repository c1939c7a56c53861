"""Running sums and products as loops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from aten_capture import capture

from treadle_codegen.costs import Costs
from treadle_codegen.interpret import interpret
from treadle_codegen.ir.loops import Extern, Loop, Program, scans
from treadle_codegen.ir.text import format_program, parse_program
from treadle_codegen.ir.verify import verify
from treadle_codegen.lower import lower_graph
from treadle_codegen.schedule.fuse import fuse
from treadle_codegen.schedule.kernel import Kernel

COSTS = Costs(split_work=8, min_parallel=8, scans=True)


def lowered(fn: Callable[..., torch.Tensor], x: torch.Tensor, costs: Costs = COSTS) -> Program:
    program = lower_graph(capture(fn, [x]), costs=costs)
    assert verify(program) == []
    text = format_program(program)
    assert format_program(parse_program(text)) == text
    return program


SHAPES = [((7,), 0), ((5, 6), 1), ((5, 6), 0), ((3, 1, 4), 1), ((2, 3, 5), -2), ((1,), 0)]


@pytest.mark.parametrize(("shape", "dim"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.bool])
def test_running_sums(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    x = (torch.randn(shape) * 3).to(dtype)
    program = lowered(lambda x: x.cumsum(dim), x)
    assert not any(isinstance(step, Extern) for step in program.steps)
    (found,) = interpret(program, [x])
    expected = x.cumsum(dim)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(
        found, expected, rtol=0.02 if dtype is torch.bfloat16 else None, atol=0.1 if dtype is torch.bfloat16 else None
    )


@pytest.mark.parametrize(("shape", "dim"), [((3, 20000), 1), ((1024, 64), 0), ((40000,), 0), ((2, 20000, 3), 1)])
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_few_long_rows_are_cut(shape: tuple[int, ...], dim: int, name: str) -> None:
    costs = Costs(split_work=8, min_parallel=128, scans=True)
    x = torch.randn(shape, dtype=torch.float64)
    x = x if name == "cumsum" else 1 + x / 1000
    fn = getattr(torch, name)
    program = lowered(lambda x: fn(x * 1.5, dim), x, costs)
    (found,) = interpret(program, [x])
    torch.testing.assert_close(found, fn(x * 1.5, dim))
    assert len([step for step in program.steps if isinstance(step, Loop) and scans(step)]) == 2


def test_few_rows_of_odd_length_are_eagers() -> None:
    (step,) = lowered(lambda x: x.cumsum(0), torch.randn(65537)).steps
    assert isinstance(step, Extern)


def test_targets_without_scans_call_eager() -> None:
    (step,) = lowered(lambda x: x.cumsum(0), torch.randn(7), Costs()).steps
    assert isinstance(step, Extern)


def test_what_follows_shares_the_kernel() -> None:
    program = lowered(lambda x: x.cumsum(1) * 2 + x, torch.randn(9, 20))
    (kernel,) = [node.item for node in fuse(program, parallel=True, costs=COSTS)]
    assert isinstance(kernel, Kernel)
    assert [a.extent for a in kernel.outer] == [9] and [[a.extent for a in s.axes] for s in kernel.sections] == [[20]]


def test_what_reads_other_rows_does_not() -> None:
    program = lowered(lambda x: (lambda y: y + y.t())(x.cumsum(1)), torch.randn(20, 20))
    assert len(fuse(program, parallel=True, costs=COSTS)) == 2


def test_verify_finds_scans_without_an_axis() -> None:
    text = format_program(lowered(lambda x: x.cumsum(0), torch.randn(7)))
    assert verify(parse_program(text.replace("scan sum", "scan max")))
