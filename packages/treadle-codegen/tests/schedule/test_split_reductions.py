"""Reductions in two loops compute what one loop computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from aten_capture import capture
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle_codegen.costs import Costs
from treadle_codegen.interpret import interpret
from treadle_codegen.ir.loops import Loop, Program
from treadle_codegen.ir.verify import verify
from treadle_codegen.lower import lower_graph
from treadle_codegen.schedule.split_reductions import parts_of, split_reductions, why_not_split

COSTS = Costs(split_work=8, min_parallel=8)


def split(fn: Callable[..., Any], *inputs: torch.Tensor) -> tuple[Program, int]:
    program = lower_graph(capture(fn, list(inputs)))
    before = len(program.steps)
    split_reductions(program, COSTS)
    assert verify(program) == []
    return program, len(program.steps) - before


def check(fn: Callable[..., Any], *inputs: torch.Tensor, tolerance: float = 1e-5) -> int:
    program, added = split(fn, *inputs)
    (result,) = interpret(program, list(inputs))
    torch.testing.assert_close(result, fn(*inputs), rtol=tolerance, atol=tolerance, equal_nan=True)
    return added


REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(),
    "rows": lambda x: x.sum(1),
    "columns": lambda x: x.sum(0),
    "mean": lambda x: (x * 2).mean() + 1,
    "product": lambda x: (1 + x / 100).prod(),
    "largest": lambda x: x.amax(0),
    "smallest integer": lambda x: (x * 10).to(torch.int32).amin(),
    "any": lambda x: (x > 2).any(),
    "all": lambda x: (x > 2).all(),
    "position": lambda x: x.argmax(),
    "positions in rows": lambda x: x.argmin(1),
    "positions in columns": lambda x: (x * 2).argmax(0) + 1,
    "first of equal ones": lambda x: (x * 2).to(torch.int32).argmax(0),
    "padded": lambda x: torch.nn.functional.pad(x, (1, 2), value=0.5).sum(),
}


@pytest.mark.parametrize("name", REDUCTIONS)
@settings(deadline=None)
@given(rows=st.integers(1, 40), columns=st.integers(1, 40))
def test_results_do_not_change(name: str, rows: int, columns: int) -> None:
    check(REDUCTIONS[name], torch.randn(rows, columns))


@pytest.mark.parametrize("name", REDUCTIONS)
def test_long_reductions_are_split(name: str) -> None:
    assert check(REDUCTIONS[name], torch.randn(3, 401) if name.endswith("rows") else torch.randn(401, 3)) >= 1


def test_nan_and_infinity_reach_the_result() -> None:
    x = torch.randn(401)
    x[7] = torch.nan
    assert check(lambda x: x.amax(), x) == 1 and check(lambda x: x.sum(), x.nan_to_num(torch.inf)) == 1


def test_what_follows_the_reduction_may_use_what_stands_before_it() -> None:
    assert check(lambda x, y: (x * y[:, None]).sum(1) * y, torch.randn(3, 401), torch.randn(3)) == 1


def test_enough_workers_need_no_split() -> None:
    assert check(lambda x: x.sum(1), torch.randn(64, 40)) == 0


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@settings(deadline=None)
@given(
    rows=st.integers(1, 60),
    columns=st.integers(1, 9),
    dim=st.sampled_from([0, 1]),
    special=st.sampled_from([torch.nan, torch.inf, -torch.inf]),
    seed=st.integers(0, 1000),
)
def test_the_first_nan_or_the_first_of_the_best(
    kind: str, rows: int, columns: int, dim: int, special: float, seed: int
) -> None:
    torch.manual_seed(seed)
    x = torch.randint(-2, 3, (rows, columns)).float()
    x[torch.rand(rows, columns) < 0.1] = special
    check(lambda x: getattr(x, kind)(dim), x)
    check(lambda x: getattr(x, kind)(), x)


def test_products_are_not_split() -> None:
    program, added = split(lambda x: x @ x.T, torch.randn(4, 400))
    assert added == 0
    for loop in program.steps:
        assert not isinstance(loop, Loop) or (why_not_split(loop) is not None and parts_of(loop, COSTS) == 1)


def test_equal_parts_need_no_masks() -> None:
    program, added = split(lambda x: x.sum(), torch.randn(1 << 12))
    loops = [step for step in program.steps if isinstance(step, Loop)]
    assert added == 1 and not any(instr.op == "masked_load" for loop in loops for instr in loop.body)


@pytest.mark.parametrize("length", [401, 512])
def test_reductions_that_gather_are_split(length: int) -> None:
    index = torch.randint(5, (length,))
    assert check(lambda x, i: x[i].sum(), torch.randn(5), index) == 1
    assert check(lambda x, i: (x[i] * 2 + 1).amax(0), torch.randn(5, 3), index) == 1


def test_a_gather_from_nothing_still_fails() -> None:
    program, _ = split(lambda x, i: x[i].sum(), torch.randn(5), torch.zeros(401, dtype=torch.int64))
    with pytest.raises(IndexError):
        interpret(program, [torch.randn(5), torch.full((401,), 9)])
