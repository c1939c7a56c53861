"""Integers beyond 64 bits: Python's value, whatever the numbers were before."""

from __future__ import annotations

import pytest
import torch

import treadle_tracer
from treadle_shapes import ShapeEnv
from treadle_tracer.values.int64 import fits

PROGRAMS = {
    "cube": lambda x, n: x * (n * n * n),
    "sum of squares": lambda x, n: x + (3 * n * n - n),
    "fits after a division": lambda x, n: x + (n * n * n) // (n * n + 1),
    "shifted": lambda x, n: x + (n << 40),
    "power": lambda x, n: x.sum() + n**3,
    "decision": lambda x, n: x + 1 if n * n * n > 5 else x - 1,
    "returned": lambda x, n: (x + 1, n * n * n * n, -n),
}


def _outcome(function, *args):
    try:
        return function(*args)
    except (OverflowError, RuntimeError) as error:
        return type(error)


@pytest.mark.filterwarnings("ignore:treadle")
@pytest.mark.parametrize("name", PROGRAMS)
def test_large_integers(name):
    program = PROGRAMS[name]
    compiled = treadle_tracer.optimize(program, lambda gm, inputs: gm.forward)
    for n in (3, 5, 2**21, 2**22, -(2**21), 2**31 - 1, 2**62, 2**63, -(2**70)):
        got, want = _outcome(compiled, torch.ones(2), n), _outcome(program, torch.ones(2), n)
        assert torch.equal(got, want) if isinstance(want, torch.Tensor) else str(got) == str(want)


def test_which_expressions_need_a_guard():
    env = ShapeEnv()
    n, m = (env.create_symbol(7, name, size=False) for name in "nm")
    a, b, c = (env.create_symbol(5, name) for name in "abc")
    assert fits(env, n * m - n) and fits(env, a * b * c + 1) and fits(env, (a + 3 * n) // 2) and not env.guards
    assert fits(env, n * n * n) and len(env.guards) > 0
    before = len(env.guards)
    assert fits(env, a * a) and len(env.guards) > before
    large = env.create_symbol(2**30, "k", size=False)
    assert not fits(env, large * large * large)
