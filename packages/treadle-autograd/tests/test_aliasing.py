"""Inputs that share memory are found; the fast answer is the slow one's."""

from __future__ import annotations

import random

import torch

from treadle_autograd.aliasing import independence_check, why_not_independent
from treadle_shapes import ShapeEnv
from treadle_shapes.torch import fake_mode, fake_shape_env, fake_tensor


def test_the_fast_check_agrees_with_the_slow_one():
    base = torch.zeros(64)
    choose = random.Random(0)
    for _ in range(300):
        inputs = []
        for _ in range(choose.randrange(1, 6)):
            start, length = choose.randrange(56), choose.randrange(8)
            inputs.append(base[start : start + length] if choose.random() < 0.8 else torch.zeros(3))
        mutated = frozenset(k for k in range(len(inputs)) if choose.random() < 0.5)
        check = independence_check(inputs, mutated)
        assert check(inputs) == (why_not_independent(inputs, mutated) is None)


def test_sizes_that_change():
    """One check for calls of all lengths, empty ones too."""
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    base = torch.zeros(64)
    fakes = [fake_tensor(mode, torch.empty(6), [env.create_symbol(6, f"n{k}")]) for k in range(3)]
    mutated = frozenset({0})
    check = independence_check([*fakes, base[:4]], mutated)
    choose, found = random.Random(0), set[bool]()
    for _ in range(400):
        starts = [choose.randrange(60) for _ in range(3)]
        inputs = [*(base[start : start + choose.randrange(4)] for start in starts), base[60:]]
        expected = why_not_independent(inputs, mutated) is None
        found.add(expected)
        assert check(inputs) == expected
    assert found == {True, False}


def test_views_with_gaps_and_numbers_among_the_inputs():
    base = torch.zeros(4, 4)
    columns = [base[:, 0], base[:, 1], 3]
    assert not independence_check(columns, frozenset({0}))(columns)  # not told apart by their extents
    assert independence_check(columns, frozenset())(columns)
    apart = [torch.zeros(4), torch.zeros(4), 3]
    assert independence_check(apart, frozenset({0, 1}))(apart)
