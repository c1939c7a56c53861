"""`min` and `max` of sizes beside what is no number."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from compile_runs import compiled


def least_of_tensor(x, n):
    return x[: min(n + 1, x.shape[0], 9)]


def greatest_of_tensor(x, n):
    return x * max(x.shape[0], n)


def least_of_object(x, n):
    return x * float(min(Fraction(11, 2), x.shape[0]))


def caught(x, n):
    try:
        return x * min(x.shape[0], n)
    except TypeError:
        return x - 1


def refused(x, n):
    try:
        return x * min(x.shape[0], "text")
    except TypeError as error:
        return x - len(str(error))


@pytest.mark.parametrize("function", [least_of_tensor, greatest_of_tensor, least_of_object, caught, refused])
def test_sizes_beside_other_values(function):
    fast, _ = compiled(function)
    for size in (4, 5, 6, 7, 3):
        x = torch.linspace(1, 2, size)
        for n in (2, 5, 8):
            assert torch.equal(fast(x, torch.tensor(n)), function(x, torch.tensor(n)))
