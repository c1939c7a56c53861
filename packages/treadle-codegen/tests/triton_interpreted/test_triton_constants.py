"""Values that are the same everywhere - constants, scalars, expanded numbers - where a kernel's blocks have other dimensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from aten_capture import capture

from treadle_codegen import compile_graph
from treadle_codegen.targets.triton import tiles


def check(fn: Callable[..., Any], *inputs: torch.Tensor) -> None:
    compiled = compile_graph(capture(fn, list(inputs)), list(inputs))
    for found, expected in zip(compiled(*inputs), torch.utils._pytree.tree_leaves(fn(*inputs)), strict=True):
        assert found.dtype == expected.dtype and found.stride() == expected.stride()
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4, equal_nan=True)


@pytest.fixture(params=["whole rows", "steps"])
def rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "steps":
        monkeypatch.setattr(tiles, "MAX_ROW", 16)
        monkeypatch.setattr(tiles, "_LOOPED_BLOCK", 32)


FILLED: dict[str, Callable[[torch.Tensor], Any]] = {
    "sum": lambda c: c.sum(1),
    "prod": lambda c: c.prod(1),
    "largest": lambda c: c.max(1),
    "position": lambda c: c.argmin(1),
    "any": lambda c: (c > 2).any(1),
    "all": lambda c: (c > 2).all(1),
    "variance": lambda c: c.var(1, correction=0),
    "softmax": lambda c: c.softmax(1),
    "logsumexp": lambda c: c.logsumexp(1),
    "running sum": lambda c: c.cumsum(1),
    "running product": lambda c: c.clamp(max=1).cumprod(1),
}


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("columns", [1, 8, 70])
@pytest.mark.parametrize("name", FILLED)
def test_reductions_of_one_number(name: str, columns: int) -> None:
    fn = FILLED[name]
    check(lambda x: fn(x.sum().expand(5, columns)), torch.randn(3, 4))
    check(lambda x: (fn(torch.full((5, columns), 0.5) * 3), x + 1), torch.randn(3, 4))
    check(lambda x: fn(x[0, 0].exp().expand(5, columns)), torch.randn(3, 4))


@pytest.mark.parametrize("name", ["sum", "prod", "any", "all", "softmax", "running sum"])
def test_reductions_of_no_numbers(name: str) -> None:
    fn = FILLED[name]
    check(lambda x: (fn(torch.full((5, 0), 0.5)), x + 1), torch.randn(3, 4))
    check(lambda x: fn(x[:, :0] * 2), torch.randn(3, 4))
    check(lambda x: (torch.zeros(0, dtype=torch.int64) > 1).any() | (x > 3).any(), torch.randn(3, 4))


@pytest.mark.usefixtures("rows")
def test_numbers_are_written_behind_reductions_and_across_tiles() -> None:
    x = torch.randn(40, 70)
    check(lambda x: (x.sum(1), torch.full((40,), 2.5)), x)
    check(lambda x: (x.sum(1), torch.full_like(x, 2.5), x - x.sum(1, keepdim=True)), x)
    check(lambda x: (x.t().contiguous() + x.sum(), torch.full((70, 40), 2.5)), x)
    check(lambda x: (x.softmax(1), x.sum(1) * 0 == 0, torch.ones(40, 70, dtype=torch.bool)), x)
    check(lambda x: (torch.full((70, 40), 3) + torch.zeros(40, 70, dtype=torch.int64).t(), x.t() + 1), x)


@pytest.mark.usefixtures("rows")
def test_one_number_is_added_at_many_places() -> None:
    x, places = torch.randn(40, 70), torch.randint(0, 40, (90,))
    check(lambda x, i: torch.zeros(40, 70).index_add(0, i, x.sum().expand(90, 70)), x, places)
    check(lambda x, i: x.index_add(0, i, torch.full((90, 70), 0.5)), x, places)
    check(lambda x, i: x.t().contiguous().index_add(1, i, x.max().expand(70, 90)), x, places)
    check(lambda x, i: x.index_put((i,), torch.full((), 0.5), accumulate=True), x, places)
    check(lambda x, i: (x.index_fill(0, i, 2.0), x.index_put((i[0],), torch.full((), 0.5))), x, places)


def test_products_with_one_number() -> None:
    x = torch.randn(40, 70)
    check(lambda x: x.sum().expand(16, 40) @ x, x)
    check(lambda x: x @ torch.full((70, 16), 0.5), x)
