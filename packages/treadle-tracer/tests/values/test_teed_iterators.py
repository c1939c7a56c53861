"""`itertools.tee` in compiled functions."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from compile_runs import check_program


def at_its_own_pace(x):
    left, right = itertools.tee([1, 2, 3])
    next(left)
    return x * sum(left) + next(right), list(right)


def of_tensors(x):
    left, right = itertools.tee([x, x + 1])
    return [*left][1] + [*right][0]


def left_alive(x):
    first, second, third = itertools.tee((number * 2 for number in range(5)), 3)
    next(first), next(first), next(second)
    return x + 1, list(first), second, third


def copied(x):
    (only,) = itertools.tee([1, 2, 3], 1)
    next(only)
    return x + 1, list(only.__copy__()), list(only)


def of_none(x):
    return x + 1, itertools.tee([1], 0)


def of_a_negative_number(x):
    try:
        itertools.tee([1], -1)
    except ValueError as error:
        return x + 1, str(error)


def of_a_tee(x):
    left, right = itertools.tee([1, 2, 3])
    again, more = itertools.tee(left)
    return x + 1, list(again), list(more), list(right), list(left)


def copied_by_the_library(x):
    (only,) = itertools.tee([1, 2], 1)
    return x + 1, list(copy.copy(only)), list(only)


def across_a_break(x):
    left, right = itertools.tee(iter([1, 2, 3, 4]))
    x = x + next(left)
    torch._dynamo.graph_break()
    return x * next(right) + next(left), list(left), list(right)


WHOLE = (at_its_own_pace, of_tensors, left_alive, copied, of_none, of_a_negative_number)
LEFT = (of_a_tee, copied_by_the_library, across_a_break)


def _plain(value):
    if isinstance(value, tuple):
        return [*map(_plain, value)]
    if hasattr(value, "__next__"):
        return (type(value), list(value))
    return value.tolist() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("program", (*WHOLE, *LEFT), ids=lambda program: program.__name__)
def test_programs(program):
    check_program(program, _plain, is_whole=program in WHOLE)
