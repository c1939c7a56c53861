"""Reductions over the results of rows are cut in two, and the first part joins the kernel of the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from aten_capture import capture

from treadle_codegen.costs import Costs
from treadle_codegen.interpret import interpret
from treadle_codegen.ir.loops import Loop, Program
from treadle_codegen.ir.verify import verify
from treadle_codegen.lower import lower_graph
from treadle_codegen.schedule.fuse import fuse
from treadle_codegen.schedule.kernel import Kernel
from treadle_codegen.schedule.row_results import store_row_results
from treadle_codegen.schedule.split_reductions import split_reductions

COSTS = Costs(split_work=8, min_parallel=8, recompute=16, small_reduction=1 << 10)


def cut(fn: Callable[..., Any], *inputs: torch.Tensor) -> tuple[Program, int]:
    program = lower_graph(capture(fn, list(inputs)), costs=COSTS)
    before = len(program.steps)
    store_row_results(program, COSTS)
    assert verify(program) == []
    torch.testing.assert_close(interpret(program, list(inputs))[0], fn(*inputs))
    return program, len(program.steps) - before


def cross_entropy(x: torch.Tensor, t: torch.Tensor, ignored: int = -100) -> torch.Tensor:
    """As PyTorch decomposes it."""
    counts = t != ignored
    picked = F.log_softmax(x, 1).gather(1, torch.where(counts, t, 0)[:, None]).squeeze(1)
    return torch.where(counts, -picked, 0).sum() / counts.sum()


LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "cross entropy": cross_entropy,
    "cross entropy with ignored rows": lambda x, t: cross_entropy(x, t, 2),
    "norm of rows": lambda x, t: ((x.norm(dim=1) - t) * 2).sum(),
    "largest of rows": lambda x, t: (x.amax(1).exp() + t).amax(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_results_of_rows_are_stored_once(name: str) -> None:
    assert cut(LOSSES[name], torch.randn(40, 6), torch.randint(6, (40,)))[1] == 1


def test_the_first_part_joins_the_kernel_of_the_rows() -> None:
    program, _ = cut(LOSSES["cross entropy"], torch.randn(256, 6), torch.randint(6, (256,)))
    split_reductions(program, COSTS)
    assert verify(program) == []
    kernels = [node.item for node in fuse(program, parallel=True, costs=COSTS)]
    assert all(isinstance(kernel, Kernel) for kernel in kernels)
    # The rows; parts of the sum and of the count of rows; the mean.
    assert [kernel.outer[0].extent if kernel.outer else 1 for kernel in kernels] == [256, 8, 1]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, t: x.sum(1).mean(),  # nothing to compute
        lambda x, t: torch.softmax(x, 1).square().sum(),  # many elements for each row
    ],
)
def test_other_reductions_stay_whole(fn: Callable[..., torch.Tensor]) -> None:
    program, added = cut(fn, torch.randn(40, 6), torch.randint(6, (40,)))
    assert added == 0 and any(isinstance(step, Loop) for step in program.steps)


def test_positions_among_results_of_rows() -> None:
    assert cut(lambda x: (x.sum(1) * 2 + 1).argmax(), torch.randn(40, 6))[1] == 1
