"""Sets that the program keeps outside of the compiled function: their members are asked for, iterated over and changed."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled


def one_more(x):
    return x + 1


def two_more(x):
    return x + 2


OPERATORS = {torch.sin, torch.Tensor.add, torch.nn.functional.relu, len, torch.ops.aten.mm.default, torch.ops.aten.mm}
STEPS = {one_more}


def asks_for_functions(x, function):
    known = (torch.sin, torch.cos, torch.Tensor.add, torch.nn.functional.relu, abs, torch.ops.aten.mm.default)
    return x + 1, function in OPERATORS, [operator in OPERATORS for operator in known], len(OPERATORS)


def calls_all(x, function):
    for step in STEPS:
        x = step(x)
    return x, function in STEPS


def constructs_on_a_device(x, function):
    with torch.device("cpu"):
        layer = torch.nn.Linear(2, 2)  # asks whether a function is in a set of torch's functions
    return x + layer(x).sum() * 0, function is None


@pytest.mark.parametrize("program", (asks_for_functions, calls_all, constructs_on_a_device))
def test_sets_of_functions(program):
    fast, said = compiled(program)
    for function, steps in ((torch.sin, {one_more}), (one_more, {one_more}), (one_more, {two_more}), (len, set())):
        STEPS.clear()
        STEPS.update(steps)
        got, want = fast(torch.ones(2), function), program(torch.ones(2), function)
        assert torch.equal(got[0], want[0])
        assert got[1:] == want[1:]
    assert not said.breaks and not said.skips
