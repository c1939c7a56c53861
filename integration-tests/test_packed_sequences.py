"""Packed sequences, whose lengths and positions follow from a small tensor of sizes: one graph, compiled, with eager's results."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import treadle

GRIDS = ([[1, 2, 2], [2, 1, 3]],) * 2 + ([[2, 1, 2], [1, 2, 3]], [[1, 5, 2]], [[1, 2, 2], [2, 1, 3]])


@pytest.fixture(autouse=True)
def _settings():
    treadle.reset()
    with treadle.config.patch(raise_internal_errors=True):
        yield
    treadle.reset()


def lengths_of(grid):
    areas = torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0])
    bounds = F.pad(areas.cumsum(0, dtype=torch.int32), (1, 0), value=0)
    return (bounds[1:] - bounds[:-1]).tolist()


def attended(x, weight, grid):
    parts = torch.split((x @ weight)[None, None], lengths_of(grid), dim=2)
    return torch.cat([F.scaled_dot_product_attention(part, part, part) for part in parts], 2)


def looked_up(x, weight, grid):
    """The number of rows is known later by the lengths that it is the sum of."""
    rows = torch.repeat_interleave(grid[:, 1], grid.prod(-1))
    found = F.embedding_bag(torch.stack([rows, rows + 1], -1), weight, mode="sum")
    frames = torch.cat([torch.arange(t).repeat_interleave(h * w) for t, h, w in grid.tolist()])
    return found + frames[:, None]


@pytest.mark.parametrize("program", [attended, looked_up])
@pytest.mark.parametrize("gradients", [False, True])
def test_results_and_gradients_are_eagers(program, gradients):
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(10, 8, generator=generator), torch.randn(8, 8, generator=generator)
    weight.requires_grad_(gradients)
    compiled = treadle.compile(program)
    for position, rows in enumerate(GRIDS):
        grid = torch.tensor(rows)
        expected, found = program(x, weight, grid), compiled(x, weight, grid)
        torch.testing.assert_close(found, expected)
        if gradients:
            (wanted,) = torch.autograd.grad(expected.pow(2).sum(), weight)
            (got,) = torch.autograd.grad(found.pow(2).sum(), weight)
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
        if position == 1:
            assert (treadle.stats().graphs, treadle.stats().breaks, treadle.stats().eager_graphs) == (1, (), ())
