"""Kernels that read a large buffer again begin where the last one ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from aten_capture import capture

from treadle_codegen.costs import Costs
from treadle_codegen.lower import lower_graph
from treadle_codegen.schedule.directions import alternate_directions
from treadle_codegen.schedule.fuse import fuse
from treadle_codegen.schedule.kernel import Kernel


def directions(fn: Callable[..., Any], *inputs: torch.Tensor, cached: int = 256) -> list[bool]:
    costs = Costs(cached_bytes=cached)
    program = lower_graph(capture(fn, list(inputs)), costs=costs)
    nodes = fuse(program, parallel=True, costs=costs)
    alternate_directions(program, nodes, costs)
    return [node.item.is_backward for node in nodes if isinstance(node.item, Kernel)]


def over_rows_and_columns(x: torch.Tensor) -> torch.Tensor:
    x = x - x.mean(0)
    return x / x.norm(dim=0)


def test_kernels_walk_to_and_fro() -> None:
    found = directions(over_rows_and_columns, torch.randn(32, 16))
    assert len(found) > 1 and found == [k % 2 == 1 for k in range(len(found))]


def test_buffers_that_the_cache_holds_are_walked_forward() -> None:
    assert not any(directions(over_rows_and_columns, torch.randn(32, 16), cached=1 << 20))
    assert not any(directions(over_rows_and_columns, torch.randn(32, 16), cached=0))


def test_what_an_operator_wrote_is_walked_backward() -> None:
    assert directions(lambda x, y: (x @ y).relu(), torch.randn(32, 16), torch.randn(16, 32)) == [True]


def test_different_buffers_are_walked_forward() -> None:
    assert not any(directions(lambda x, y: (x.t() + 1, y.sum(0)), torch.randn(32, 16), torch.randn(64, 8)))
