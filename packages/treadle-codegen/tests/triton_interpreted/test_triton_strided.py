"""Groups of neighbours that points read together are loaded at once and taken apart in registers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted_kernels import Function, source_and_check

TAKEN_TOGETHER: dict[str, Function] = {
    "pooling": lambda x: F.max_pool2d(x[None], 2),
    "sums of pairs": lambda x: x[..., ::2] + x[..., 1::2],
    "pairs that begin at the third element": lambda x: x[..., 2:-2:2] * x[..., 3:-2:2],
    "fours": lambda x: x[..., ::4] + x[..., 1::4] * x[..., 2::4] - x[..., 3::4],
    "both": lambda x: (
        (x[..., : x.shape[-1] // 2][..., ::2] + x[..., 1::2][..., : x.shape[-1] // 4]) * x[..., ::4].sign()
    ),
}
ONE_BY_ONE: dict[str, Function] = {
    "every second only": lambda x: x[..., ::2] * 2,
    "three of four": lambda x: x[..., ::4] + x[..., 1::4] + x[..., 2::4],
    "threes": lambda x: x[..., : x.shape[-1] // 3 * 3 : 3] + x[..., 1 : x.shape[-1] // 3 * 3 : 3],
    "neighbours": lambda x: x[..., 1:] + x[..., :-1],
}


@pytest.mark.parametrize("name", TAKEN_TOGETHER)
@pytest.mark.parametrize("shape", [(3, 4, 64), (2, 6, 20), (64, 4096), (1, 8, 1024 * 4)], ids=str)
def test_whole_groups_are_taken_together(name: str, shape: tuple[int, ...]) -> None:
    if name == "pooling" and len(shape) < 3:
        shape = (1, *shape)
    assert "tl.split" in source_and_check(TAKEN_TOGETHER[name], torch.randn(shape))


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_what_is_not_read_is_not_loaded(name: str) -> None:
    assert "tl.split" not in source_and_check(ONE_BY_ONE[name], torch.randn(3, 64))


@given(
    st.integers(1, 3), st.integers(1, 5), st.integers(1, 70), st.sampled_from([2, 4]), st.integers(0, 3), st.booleans()
)
@settings(max_examples=40, deadline=None)
def test_random_groups(batch: int, rows: int, groups: int, step: int, first: int, is_transposed: bool) -> None:
    x = torch.randn(batch, rows, groups * step + first)
    if is_transposed:
        x = x.transpose(0, 1)

    def compute(x: torch.Tensor) -> torch.Tensor:
        parts = [x[..., first + k :: step] * (k + 1) for k in range(step)]
        return sum(parts[1:], parts[0])

    source_and_check(compute, x)
