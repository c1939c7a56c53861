"""Gathered rows are read as wide as memory allows: kernels say that the elements of a row are neighbours where they are."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from interpreted_kernels import Function, source_and_check

GATHERS: dict[str, Function] = {
    "rows": lambda i, w: w[i] * 2,
    "sums of rows": lambda i, w: F.embedding(i.view(-1, 8), w).sum(1),
    "parts of rows": lambda i, w: w[i][:, w.shape[1] // 2 :] + 1,
    "written rows": lambda i, w: torch.ops.aten.index_add(w, 0, i, w[: len(i)]),
}


@pytest.mark.parametrize("name", GATHERS)
def test_rows_that_blocks_divide_are_neighbours(name: str) -> None:
    i, w = torch.randint(40, (24,)), torch.randn(40, 2048)
    assert "tl.max_contiguous" in source_and_check(GATHERS[name], i, w)


@pytest.mark.parametrize("name", GATHERS)
def test_a_block_may_hold_the_end_of_a_row_and_the_beginning_of_another(name: str) -> None:
    i, w = torch.randint(40, (24,)), torch.randn(40, 70)
    assert "tl.max_contiguous" not in source_and_check(GATHERS[name], i, w)


def test_elements_at_positions_of_their_own_are_no_neighbours() -> None:
    i, w = torch.randint(40, (8, 2048)), torch.randn(40, 2048)
    assert "tl.max_contiguous" not in source_and_check(lambda i, w: torch.gather(w, 0, i), i, w)
    assert "tl.max_contiguous" not in source_and_check(lambda i, w: w.flip(1)[:8] + w.t()[i[0]].t()[:8], i, w)
