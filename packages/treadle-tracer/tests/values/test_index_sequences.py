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


@pytest.mark.parametrize("program", [*WHOLE, *OTHERS], ids=lambda f: f.__name__)
def test_like_eager(program):
    x = torch.arange(24.0).reshape(4, 6)
    fast, recorder = compiled(program)
    for n in (INDICES, INDICES.flip(0), INDICES):
        expected, found = program(x, n), fast(x, n)
        assert type(found) is type(expected)
        if isinstance(expected, str):
            assert found == expected
        else:
            torch.testing.assert_close(found, expected)
    if program in WHOLE:
        assert len(recorder.graphs) == 1 and not recorder.breaks
