"""Items of tensors under keys that hold sequences of tensors, as in eager."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled

INDICES = torch.tensor([[0, 2], [1, 3]])


def read(x, n):
    rows, cols = zip(*n)
    return x[rows, cols]


def written(x, n):
    """As UDOP of transformers marks patches."""
    mask = torch.full_like(x, True).bool()
    rows, cols = zip(*n)
    mask[rows, cols] = False
    return mask


def beside_a_slice(x, n):
    return x[[n[0, 0], n[1, 1]], :2], x[:, (n[0, 1], 0)]


def beside_numbers(x, n):
    return x[[n[0, 0], 3, -1], 1]


def of_other_integers(x, n):
    return x[[n[0, 0].int(), n[0, 1].to(torch.uint8)], 0]


def whole_key(x, n):
    return x[tuple(n[0])], x[[n[0, 0], n[0, 1]],]


def out_of_range(x, n):
    try:
        return x[[n[0, 0] + 9, n[0, 1]], 0]
    except IndexError:
        return x


def of_truth_values(x, n):
    return x[[n[0, 0] > 5, n[0, 0] < 5, n[0, 0] < 5, n[0, 0] > 5], 0]


def of_floats(x, n):
    try:
        return x[[n[0, 0] * 1.0], 0]
    except (TypeError, IndexError) as error:
        return type(error).__name__


def of_vectors(x, n):
    return x[[n[:, 0][:1], n[:, 1][:1]], 0]


WHOLE = (read, written, beside_a_slice, beside_numbers, of_other_integers)
OTHERS = (whole_key, out_of_range, of_truth_values, of_floats, of_vectors)


X = torch.arange(24.0).reshape(4, 6)
CALLS = (INDICES, INDICES.flip(0), INDICES)
# Made before any test runs: once a test has replaced `Tensor.__getitem__`, tensors are sequences for C for the rest of the process, and
# eager asks a tensor of one integer for its length.
EXPECTED = {program: [program(X, n) for n in CALLS] for program in (*WHOLE, *OTHERS)}


def check(program):
    fast, recorder = compiled(program)
    for n, expected in zip(CALLS, EXPECTED[program], strict=True):
        found = fast(X, n)
        assert type(found) is type(expected)
        if isinstance(expected, str):
            assert found == expected
        else:
            torch.testing.assert_close(found, expected)
    return recorder


@pytest.mark.parametrize("program", WHOLE, ids=lambda f: f.__name__)
def test_one_graph(program):
    recorder = check(program)
    assert len(recorder.graphs) == 1 and not recorder.breaks


@pytest.mark.parametrize("program", OTHERS, ids=lambda f: f.__name__)
def test_left_to_eager(program):
    try:
        X[[INDICES[0, 0]], 0]
    except TypeError:
        pytest.skip("a test before this one has replaced Tensor.__getitem__")
    check(program)
