"""Arguments that are parts of tensors whose sizes change: their own sizes stay the same, their strides do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from compile_runs import compiled

Part = Callable[[int], torch.Tensor]


def whole(*sizes: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(sizes).numel())).reshape(sizes).sin()


PARTS: dict[str, Part] = {
    "last columns": lambda n: whole(2, 3, n)[..., -4:],
    "columns of a matrix": lambda n: whole(5, n)[:, 1:4],
    "middle dimension": lambda n: whole(2, n, 3)[:, 2:6],
    "transposed": lambda n: whole(2, 3, n)[..., -4:].transpose(0, 1),
    "two dimensions": lambda n: whole(2, n, n + 1)[:, :3, :4],
    "expanded": lambda n: whole(3, n)[None, :, :4].expand(2, -1, -1),
}


def program(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    joined = torch.cat([state, x.expand(*state.shape[:-1], -1)], -1)
    return joined.cumsum(-1) * state.sum() + state.reshape(-1)[0]


@pytest.mark.parametrize("name", PARTS)
def test_changing_strides_are_compiled_once(name: str) -> None:
    fast, recorder = compiled(program)
    for n in range(8, 20):
        state, x = PARTS[name](n), torch.ones(n)
        torch.testing.assert_close(fast(state, x), program(state, x))
    assert len(recorder.recompiles) <= 3
    assert recorder.recompiles[-1][1].count("(dynamic from now on)") >= 1


@pytest.mark.parametrize("name", PARTS)
def test_results_at_all_layouts(name: str) -> None:
    """Dense ones, others of the same order, and other orders, in turn."""
    fast, _ = compiled(program)
    for n in (8, 9, 10, 11, 6, 30):
        part = PARTS[name](n)
        turned = part.permute(*reversed(range(part.dim()))).contiguous().permute(*reversed(range(part.dim())))
        for state in (part, part.contiguous(), turned, part):
            x = torch.ones(n)
            torch.testing.assert_close(fast(state, x), program(state, x))


def test_sizes_that_the_program_asks_for() -> None:
    """The size next to the strides is a symbol then; what is decided on it holds."""

    def decides(state: torch.Tensor) -> torch.Tensor:
        return state.sum() if state.shape[-1] == 4 else state.prod()

    fast, recorder = compiled(decides)
    for n, width in ((8, 4), (9, 4), (10, 4), (11, 4), (12, 3), (13, 4), (14, 3)):
        state = whole(2, n)[:, :width]
        torch.testing.assert_close(fast(state), decides(state))
    assert len(recorder.recompiles) <= 4


def test_two_layouts_are_two_constants() -> None:
    """Only a third one shows that strides change."""

    def double(state: torch.Tensor) -> torch.Tensor:
        return state * 2

    fast, recorder = compiled(double)
    for n in (8, 9, 8, 9):
        fast(whole(2, 3, n)[..., -4:])
    assert [reason for _, reason in recorder.recompiles] == ["state.stride(): expected (24, 8, 1), found (27, 9, 1)"]
