"""Tensors indexed by ints that differ between calls: one compile for all, negative positions included."""

from __future__ import annotations

import pytest
import torch

import treadle


def read(x, i, j):
    return x[:, i] + x[j], x[None, i, ..., j] * 2, x[i : j + 7, None, j]


def from_the_end(x, i, j):
    return x[-i - 1] + x[..., -j - 1, :], x.select(-1, -i - 1) * 2


def written(x, i, j):
    y = x.clone()
    y[i, :, j] = x[j, :, i]
    y[..., i] += 1
    y[..., -i - 1] += x[0]
    y[i] *= 2
    y[j, 0] = 1.5
    return y


def in_views(x, i, j):
    y = x.clone()
    y.select(-1, -i - 1).copy_(x[0])
    y.select(0, 5 - j).add_(1)
    return torch.select_scatter(y, y[0] + 1, -1, -i - 1)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("program", [read, from_the_end, written, in_views])
def test_positions_are_no_constants(program, gradients):
    fast = treadle.compile(program)
    for i, j in ((2, 1), (3, 2), (4, 3), (5, 3), (1, 4), (2, 2)):
        x = torch.randn(6, 6, 6, requires_grad=gradients)
        got, want = (result if isinstance(result, tuple) else (result,) for result in (fast(x, i, j), program(x, i, j)))
        assert all(map(torch.equal, got, want))
        if gradients:
            of_got, of_want = (
                torch.autograd.grad(sum(r.square().sum() for r in result), x)[0] for result in (got, want)
            )
            torch.testing.assert_close(of_got, of_want)
    assert treadle.stats().graphs <= 2


def test_a_position_out_of_range_raises_as_in_eager():
    def program(x, i):
        try:
            return x[i * 2, 0]
        except IndexError as error:
            return str(error)

    fast = treadle.compile(program)
    x = torch.randn(6, 2)
    for i in (1, 2, -1, 3, -2, -3, -4, 5):
        got, want = fast(x, i), program(x, i)
        assert got == want if isinstance(want, str) else torch.equal(got, want)


def test_a_matrix_at_a_position_that_is_decided_on():
    """A choice that the program decides on picks a matrix; the other matrix of the graph is a weight that may be packed."""
    net = torch.nn.Linear(8, 8).eval()
    names = ["a", "b", "c", "d"]

    def program(x, matrices):
        chosen = int(x[:4].argmax())
        name = names[chosen]
        return net(torch.tanh(x @ matrices[chosen]) * 2), name

    fast = treadle.compile(program, options={"leave_unprofitable": False, "raise_internal_errors": True})
    matrices = torch.randn(4, 8, 8)
    with torch.no_grad():
        for k in (0, 3, 1, 2, 3):
            x = torch.randn(8)
            x[k] = 9.0
            (result, name), (expected, _) = fast(x, matrices), program(x, matrices)
            torch.testing.assert_close(result, expected)
            assert name == names[k]
