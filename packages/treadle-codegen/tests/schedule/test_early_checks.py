"""Caches written at positions that are data are updated in place, and a call with a position out of range writes none of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from treadle_codegen import compile_graph
from treadle_codegen.ir.text import format_program, parse_program
from treadle_codegen.options import CodegenOptions

LAYERS = 3
ROWS = 40  # of a cache


def step(caches: list[torch.Tensor], positions: list[torch.Tensor], new: torch.Tensor) -> list[torch.Tensor]:
    """What the layers of a model do with their caches: a product between two writes, so that they are different kernels."""
    written, x = [], new
    for cache, position in zip(caches, positions, strict=True):
        written.append(cache.index_copy(0, position + 1, x))
        x = torch.mm(written[-1][: len(new)], x.mT @ x)
    return [*written, x]


def inputs_of(positions: list[list[int]]) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
    torch.manual_seed(0)
    caches = [torch.randn(ROWS, 8) for _ in positions]
    return caches, [torch.tensor(p) for p in positions], torch.randn(len(positions[0]), 8)


def compiled(positions: list[list[int]]) -> Any:
    """The step with its caches written back."""
    from torch.fx.experimental.proxy_tensor import make_fx

    caches, places, new = inputs_of(positions)
    flat = [*caches, *places, new]

    def function(*args: torch.Tensor) -> list[torch.Tensor]:
        return step(list(args[: len(caches)]), list(args[len(caches) : -1]), args[-1])

    gm = make_fx(function, tracing_mode="fake")(*flat)
    results = gm.graph.output_node().args[0]
    for k in range(len(caches)):
        results[k].meta["mutates"] = k
    assert isinstance(gm, fx.GraphModule)
    return compile_graph(gm, flat, options=CodegenOptions(verify=True))


@pytest.mark.parametrize("places", [[3], [3, 11]], ids=["one row", "two rows"])
def test_caches_are_written_in_place(places: list[int]):
    positions = [[p + k for p in places] for k in range(LAYERS)]
    graph = compiled(positions)
    caches, indices, new = inputs_of(positions)
    expected = step(caches, indices, new)
    results = graph(*caches, *indices, new)
    assert all(result is cache for result, cache in zip(results, caches, strict=False))
    torch.testing.assert_close([*results], expected)


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("place", [ROWS - 1, -2 - ROWS])
def test_a_position_out_of_range_writes_nothing(layer: int, place: int):
    graph = compiled([[k] for k in range(LAYERS)])
    caches, indices, new = inputs_of([[k] for k in range(LAYERS)])
    before = [cache.clone() for cache in caches]
    indices[layer].fill_(place)
    with pytest.raises(IndexError, match="out of range"):
        graph(*caches, *indices, new)
    assert all(map(torch.equal, caches, before))
    indices[layer].fill_(5)  # and the next call is none the worse for it
    torch.testing.assert_close([*graph(*caches, *indices, new)], step(before, indices, new))


def test_positions_that_are_computed_late_are_checked_late():
    """The second position depends on a product with the first cache: nothing says before the first write that it is in range."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def function(a: torch.Tensor, b: torch.Tensor, i: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        first = a.index_copy(0, i, x)
        place = (first[:8].mm(x.mT).sum() * 0).long()[None]
        return [first, b.index_copy(0, place + i, x)]

    a, b, i, x = torch.randn(ROWS, 8), torch.randn(ROWS, 8), torch.tensor([4]), torch.randn(1, 8)
    gm = make_fx(function, tracing_mode="fake")(a, b, i, x)
    for k, result in enumerate(gm.graph.output_node().args[0]):
        result.meta["mutates"] = k
    graph = compile_graph(gm, [a, b, i, x], options=CodegenOptions(verify=True))
    assert graph(a, b, i, x)[0] is not a
    before = a.clone(), b.clone()
    with pytest.raises(IndexError):
        graph(a, b, torch.tensor([ROWS]), x)
    assert torch.equal(a, before[0]) and torch.equal(b, before[1])


def add_and_sample(
    wide: torch.Tensor, narrow: torch.Tensor, row: torch.Tensor, order: torch.Tensor, at: torch.Tensor
) -> list[torch.Tensor]:
    """A replay buffer: a row is stored in each table, then rows are read at random positions and at those that an operator finds."""
    stored = [wide.select_scatter(row, 0, 3), narrow.select_scatter(row[:1], 0, 3)]
    drawn = torch.randint(0, 500, (5,))
    return [*stored, stored[0][drawn], stored[1][drawn], stored[0][order.sort().indices], stored[1][at]]


def test_what_may_raise_and_needs_no_update_comes_first():
    from torch.fx.experimental.proxy_tensor import make_fx

    torch.manual_seed(0)
    wide, narrow, row = torch.randn(500, 8), torch.randn(500, 1), torch.randn(8)
    order, at = torch.randn(5), torch.arange(5)
    tensors = [wide, narrow, row, order, at]
    gm = make_fx(add_and_sample, tracing_mode="fake")(*tensors)
    for k, result in enumerate(gm.graph.output_node().args[0][:2]):
        result.meta["mutates"] = k
    graph = compile_graph(gm, tensors, options=CodegenOptions(verify=True))
    torch.manual_seed(1)
    expected = add_and_sample(*tensors)
    torch.manual_seed(1)
    results = graph(*tensors)
    assert results[0] is wide and results[1] is narrow
    torch.testing.assert_close([*results], expected)
    before = wide.clone(), narrow.clone()
    with pytest.raises(IndexError):
        graph(wide, narrow, -row, order, at + 496)
    assert torch.equal(wide, before[0]) and torch.equal(narrow, before[1])


def test_a_call_that_needs_an_update_stays_behind_it():
    from torch.fx.experimental.proxy_tensor import make_fx

    def function(table: torch.Tensor, row: torch.Tensor) -> list[torch.Tensor]:
        stored = table.select_scatter(row, 0, 3)
        return [stored, torch.linalg.inv(stored[:8]), row.sort().values]

    tensors = [torch.randn(500, 8), torch.randn(8)]
    gm = make_fx(function, tracing_mode="fake")(*tensors)
    gm.graph.output_node().args[0][0].meta["mutates"] = 0
    graph = compile_graph(gm, tensors, options=CodegenOptions(verify=True))
    before = tensors[0].clone()
    expected = function(*tensors)
    torch.testing.assert_close([*graph(*tensors)], expected)
    tensors[0].copy_(before)
    tensors[0][:8] = 0
    with pytest.raises(RuntimeError, match="singular"):
        graph(tensors[0], torch.zeros(8))
    assert torch.equal(tensors[0][3], torch.zeros(8)) and torch.equal(tensors[0][8:], before[8:])


def test_the_text_of_a_check_is_read_again():
    text = """\
program inputs p outputs view(q, [8], [1], 0)
input p : int64 [8] strides [1] offset 0
output q : int64 [8] strides [1] offset 0
loop check [i0:8] reduce [] origins a
  %0 = load p[i0] : int64
  %1 = check_position 9 %0 : int64
loop copy [i0:8] reduce [] origins b
  %0 = load p[i0] : int64
  %1 = store q[i0] %0 : int64
"""
    assert format_program(parse_program(format_program(parse_program(text)))) == format_program(parse_program(text))
