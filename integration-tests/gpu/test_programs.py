"""Random programs, and sizes that change from call to call."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from random_programs import check_programs

import treadle

BATCHES, EXAMPLES = 12, 6
SIZES = (5, 64, 1, 100, 333, 1025, 2)
DYNAMIC = {
    "softmax": lambda x: torch.softmax(x * 2, -1).sum(0),
    "columns": lambda x: (x.sum(0), x.amax(0), x.var(0)),
    "all": lambda x: (x.sum(), x.mean(), x.argmax()),
    "pointwise": lambda x: F.gelu(x) * torch.arange(x.shape[1], device=x.device),
    "transpose": lambda x: x.t().contiguous() + x.shape[0],
    "cat": lambda x: torch.cat([x, x.sin()], 1)[:, 1:],
    "norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "scan": lambda x: x.cumsum(1) + x.cumsum(0),
    "matmul": lambda x: F.relu(x @ x.t()),
}


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_programs(batch: int, device: torch.device) -> None:
    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        treadle.reset()
        return treadle.compile(function)

    check_programs(batch, EXAMPLES, compiled, device)


@pytest.mark.parametrize("name", DYNAMIC)
def test_sizes_that_change(name: str, device: torch.device) -> None:
    function = DYNAMIC[name]
    compiled = treadle.compile(function)
    draw = random.Random(name)
    for rows in SIZES:
        x = torch.randn(rows, draw.choice(SIZES[1:]), device=device)
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-3, atol=1e-3, equal_nan=True)
    assert not treadle.stats().eager_graphs


def test_sizes_of_a_dynamic_dimension_need_few_compiles(device: torch.device) -> None:
    compiled = treadle.compile(lambda x: torch.softmax(x, -1) * 2)
    for n in range(3, 40):
        x = torch.randn(n, 8, device=device)
        torch.testing.assert_close(compiled(x), torch.softmax(x, -1) * 2)
    assert treadle.stats().graphs <= 2
