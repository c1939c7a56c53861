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
    "a column": lambda n: whole(5, n)[:, 0],
    "the last column of each": lambda n: whole(2, 3, n)[..., -1],
    "every nth": lambda n: whole(4 * n)[::n],
    "a column of a column": lambda n: whole(2, n, n)[:, :4, 1],
    "a diagonal": lambda n: whole(n, n)[:5, :5].diagonal(),
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


def test_a_column_of_rows_that_change_too() -> None:
    """Sizes and strides vary apart from each other."""

    def loss(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return ((prediction - target) ** 2).mean() + prediction.sum()

    fast, recorder = compiled(loss)
    for rows, width in ((3, 8), (4, 9), (5, 11), (6, 7), (2, 30), (9, 4), (7, 12), (8, 13), (11, 2)):
        pair = whole(rows, width)[:, 0], whole(rows, width + 1)[:, 1]
        torch.testing.assert_close(fast(*pair), loss(*pair))
    assert len(recorder.graphs) <= 4


def test_strides_that_the_program_asks_for() -> None:
    def shown(state: torch.Tensor) -> tuple[torch.Tensor, int, bool, tuple[int, ...]]:
        first = state.stride(0)
        grown = state + first if first > 12 else state - first
        return grown, first * 2, state.is_contiguous(), tuple(state.stride())

    fast, _ = compiled(shown)
    for n in (8, 9, 10, 11, 12, 13, 14, 15, 1, 7):
        state = whole(5, n)[:, 0]
        found, expected = fast(state), shown(state)
        assert torch.equal(found[0], expected[0]) and found[1:] == expected[1:]


def test_results_have_the_strides_of_eager() -> None:
    def views(state: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return state[1:], state.view(5, 1), state * 2, state.expand(3, 5), torch.empty_like(state)

    fast, _ = compiled(views)
    for n in (8, 9, 10, 11, 1, 2, 5, 1, 12):
        state = whole(5, n)[:, n // 2]
        found, expected = fast(state), views(state)
        assert [t.stride() for t in found] == [t.stride() for t in expected]
        assert [t.storage_offset() for t in found] == [t.storage_offset() for t in expected]
        assert found[0].data_ptr() == expected[0].data_ptr()


def test_writes_reach_the_whole() -> None:
    def writes(column: torch.Tensor) -> torch.Tensor:
        column += 1
        column[2:].mul_(3)
        return column.sum()

    fast, recorder = compiled(writes)
    for n in (8, 9, 10, 11, 3, 2, 1, 14):
        mine, theirs = whole(5, n), whole(5, n)
        assert torch.equal(fast(mine[:, 0]), writes(theirs[:, 0]))
        assert torch.equal(mine, theirs)
    assert len(recorder.graphs) <= 4


def test_two_columns_of_one_matrix() -> None:
    def moves(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        first.add_(second)
        return first * second

    fast, _ = compiled(moves)
    for n, other in ((8, 1), (9, 1), (10, 1), (11, 1), (12, 0), (13, 0), (14, 1)):
        mine, theirs = whole(5, n), whole(5, n)
        assert torch.equal(fast(mine[:, 0], mine[:, other]), moves(theirs[:, 0], theirs[:, other]))
        assert torch.equal(mine, theirs)


def test_gradients_of_a_column() -> None:
    def squared(column: torch.Tensor) -> torch.Tensor:
        return (column * column).sum()

    fast, recorder = compiled(squared)
    for n in range(8, 16):
        weight = whole(5, n).requires_grad_()
        fast(weight[:, 0]).backward()
        expected = torch.zeros(5, n)
        expected[:, 0] = 2 * weight.detach()[:, 0]
        assert torch.equal(weight.grad, expected)
    assert len(recorder.graphs) <= 3


def test_static_sizes_and_no_learning() -> None:
    fast, recorder = compiled(program, dynamic=False)
    for n in range(8, 14):
        state, x = whole(5, n)[:, 0], torch.ones(3)
        torch.testing.assert_close(fast(state, x), program(state, x))
    assert len(recorder.graphs) == 6
