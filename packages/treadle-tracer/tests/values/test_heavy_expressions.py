"""Numbers that a loop computes from changing ones: their expressions double with every step, so beyond a size they are constants."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled

from treadle_shapes import ShapeEnv
from treadle_shapes.expr import weight_of

STEPS = 60


def running_maximum(x, n):
    end = n
    for k in range(STEPS):
        end = max(end + 1, end + k % 3, n)
    return x + end, end


def placed(x, n):
    offset, ends = 0, []
    for k in range(STEPS):
        ends.append(offset)
        offset = max(offset, offset + k - n)
    return x + offset, ends


def remainders(x, n):
    a, b = n, n + 1
    for _ in range(STEPS):
        a, b = min(a, b) + 1, max(a // 2, b % 7 + a)
    return x * a, a, b


def squares(x, n):
    a = n * 0.01
    for _ in range(STEPS):
        a = a * a * 0.5 + a
    return x * a, a


def decayed(x, n):
    a = n * 0.1
    for _ in range(STEPS):
        a = max(a * 0.9, a * 0.5 + n)
    return x * a, a


@pytest.mark.parametrize("program", [running_maximum, placed, remainders, squares, decayed], ids=lambda p: p.__name__)
def test_a_number_computed_in_a_loop(program):
    run = compiled(program)[0]
    for n in (3, 4, 5, 4, 7):
        found, wanted = run(torch.ones(2), n), program(torch.ones(2), n)
        assert torch.equal(found[0], wanted[0]) and found[1:] == wanted[1:]


def test_a_size_computed_in_a_loop():
    def program(x):
        return remainders(x.sum(), x.shape[0])

    run = compiled(program, dynamic=True)[0]
    for n in (3, 4, 5, 8):
        found, wanted = run(torch.ones(n)), program(torch.ones(n))
        assert torch.equal(found[0], wanted[0]) and found[1:] == wanted[1:]


def test_a_short_loop_leaves_the_number_a_symbol():
    def program(x, n):
        end = n
        for k in range(4):
            end = max(end + 1, end + k % 3, n)
        return x + end

    run, said = compiled(program)[:2]
    for n in (3, 4, 5, 6):
        assert torch.equal(run(torch.ones(2), n), program(torch.ones(2), n))
    assert len(said.graphs) == 2 and not said.breaks


def test_parts_count_wherever_they_stand():
    env = ShapeEnv()
    n = env.create_symbol(5, "n", size=False)
    assert weight_of(n) == 1 and weight_of(3) == 1
    end, weights = n, []
    for _ in range(40):
        end = (3 * end + 1) // 2 + end % 7
        weights.append(weight_of(end))
    assert weights == sorted(weights) and weights[8] > 2**8 and weights[-1] == 2**30
