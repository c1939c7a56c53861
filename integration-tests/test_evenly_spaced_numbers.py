"""`torch.linspace` with a number of steps that changes, as schedulers of noise levels make it."""

import random

import pytest
import torch

import treadle


def ends(seed):
    source = random.Random(seed)
    return source.gauss(0, 10), source.gauss(0, 10)


def test_single_precision_is_exact():
    def program(steps, first, last):
        return torch.linspace(first, last, steps)

    run = treadle.compile(program, dynamic=True)
    for seed in range(60):
        steps, (first, last) = random.Random(seed).randint(1, 70), ends(seed)
        assert torch.equal(run(steps, first, last), program(steps, first, last)), (steps, first, last)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_dtypes(dtype):
    def program(x):
        return torch.linspace(0.1, 3.7, x.shape[0], dtype=dtype), x * 2

    run = treadle.compile(program)
    for size in (4, 1, 7, 2, 33):
        given, wanted = run(torch.ones(size))[0], program(torch.ones(size))[0]
        torch.testing.assert_close(given, wanted)
