"""A list from outside that every call makes longer: what the call has appended is read without relying on the length."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled

HELD: list[torch.Tensor] = []


def the_last(x):
    HELD.append(x * 2)
    return HELD[-1] + 1


def the_last_two(x):
    HELD.append(x * 2)
    HELD.append(x * 3)
    return HELD[-1] + HELD[-2], bool(HELD)


def one_that_was_there(x):
    HELD.append(x * 2)
    return HELD[-2] + 1


def out_of_range(x):
    HELD.append(x)
    try:
        return HELD[-100]
    except IndexError as error:
        return str(error)


@pytest.mark.parametrize(
    "program", (the_last, the_last_two, one_that_was_there, out_of_range), ids=lambda f: f.__name__
)
def test_items_from_the_end(program):
    run, said = compiled(program)
    found = []
    for function in (run, program):
        HELD[:] = [torch.zeros(2), torch.ones(2)]
        found.append((str([function(torch.full((2,), float(step))) for step in range(6)]), str(HELD)))
    assert found[0] == found[1]
    assert len(said.graphs) == 1 or program in (one_that_was_there, out_of_range)
