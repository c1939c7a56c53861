"""Operators of the program that draw random numbers in Python, among draws of the program itself: the order is eager's."""

from __future__ import annotations

import random

import pytest
import torch
from compile_runs import compiled


@torch.library.custom_op("treadle_hidden_draws::noise", mutates_args=())
def noise(x: torch.Tensor) -> torch.Tensor:
    return x + random.random()


@noise.register_fake
def _(x):
    return torch.empty_like(x)


def draw_before(x):
    return noise(x * random.random())


def draw_behind(x):
    return noise(x) * random.random()


def on_both_sides(x):
    x = noise(x * random.random()) * random.random()
    return noise(x) + random.random()


def behind_a_seed(x):
    random.seed(3)
    return noise(x) * random.random()


def only_the_operator(x):
    return noise(x) + 1


@pytest.mark.parametrize("function", [draw_before, draw_behind, on_both_sides, behind_a_seed, only_the_operator])
def test_numbers_come_in_the_order_of_the_program(function):
    x = torch.arange(3.0)
    random.seed(11)
    expected = [function(x) for _ in range(4)]
    state = random.getstate()
    traced, recorder = compiled(function)
    random.seed(11)
    torch.testing.assert_close([traced(x) for _ in range(4)], expected)
    assert random.getstate() == state
    assert function is not only_the_operator or len(recorder.graphs) == 1


def test_numbers_of_pytorch_among_sizes_draw_nothing():
    """`max(0, n)` of a changing size is a call of `torch.sym_max`, which is written in Python."""

    def function(x):
        margin = max(0, x.shape[0] - 5)
        return torch.nn.functional.pad(x, (margin, margin)) * random.random()

    traced, recorder = compiled(function)
    for size in (7, 8, 9, 3):
        x = torch.arange(float(size))
        random.seed(size)
        expected, state = function(x), random.getstate()
        random.seed(size)
        torch.testing.assert_close(traced(x), expected)
        assert random.getstate() == state
    assert not recorder.breaks
