"""Programs of `random_key_programs` look the same in every call, compiled and in eager."""

from __future__ import annotations

import random
import warnings

import pytest
from compile_runs import compiled
from random_key_programs import arguments, outcome, program, state

BATCHES = 8
IN_A_BATCH = 25


def check(seed):
    r = random.Random(seed)
    text = program(r)
    eager, traced = state(seed), state(seed)
    exec(text, eager)
    exec(text, traced)
    fast = compiled(traced["f"])[0]
    for _ in range(8):
        first = arguments(r)
        second = (first[0].clone(), *first[1:])
        want = outcome(eager["f"], first, eager)
        assert outcome(fast, second, traced) == want, f"seed {seed}, {first[1:]}\n{text}"


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_programs(batch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a program may need more versions than there may be
        for k in range(IN_A_BATCH):
            check(100 * batch + k)
