"""Ints beyond 31 bits that are others in each call, as seeds are: Python computes with them, and nothing is compiled for each of them."""

from __future__ import annotations

import sys

import pytest
import torch
from compile_runs import compiled
from torch.utils import _pytree as pytree

from treadle_tracer.dynamic import is_drawn

SEEDS = [12503240223028492521, 4652162176992759524, 17784811067428741287, 3701941156935783849, 2**31 + 5, -(2**40) - 3]


class Holder:
    def __init__(self):
        self.seed = 0


def remainder(x, seed):
    return (x + seed % 7).sin() * 2


def kept(x, seed):
    holder = Holder()
    holder.seed = seed
    return (x + 1).sin(), holder.seed, [seed, (seed,)]


def seeded(x, seed):
    torch.manual_seed(seed)
    return x + torch.rand(3)


def compared(x, seed):
    return x.sin() if seed > 0 else x.cos()


def equal(x, seed):
    return (x.sin(), seed == seed, seed is seed, seed in (1, seed))


def as_key(x, seed):
    found = {seed: x.sin()}
    return found[seed] + 1, found


def times(x, seed):
    return x * seed


def written(x, seed):
    return x.sin(), f"{seed:x}", str(seed), isinstance(seed, int)


def largest(x, seed):
    return x.sin(), max(seed, 3), int(seed), bool(seed), float(seed), -seed, seed >> 3, seed.bit_length(), hash(seed)


def made(x, seed):
    return x.to(torch.float64) + torch.tensor(seed % 2**31), torch.full((2,), float(seed))


def outcome(function, *arguments):
    """What a call gives, or raises."""
    try:
        found = function(*arguments)
    except Exception as error:
        return type(error), str(error)
    return [leaf.tolist() if isinstance(leaf, torch.Tensor) else leaf for leaf in pytree.tree_leaves(found)]


PROGRAMS = [remainder, kept, seeded, compared, equal, as_key, times, written, largest, made]


@pytest.mark.parametrize("program", PROGRAMS)
def test_results_are_eager_s(program):
    function, stats = compiled(program)
    x = torch.randn(3)
    for seed in SEEDS:
        expected, state = outcome(program, x, seed), torch.get_rng_state()
        assert outcome(function, x, seed) == expected
        assert program is not seeded or torch.equal(torch.get_rng_state(), state)
    # What Python makes of it is another number in each call as well: the continuation is compiled for several of them.
    assert program in (written, largest, made) or len(stats.recompiles) <= 2


def test_what_only_passes_through_breaks_no_graph():
    function, stats = compiled(kept)
    for seed in SEEDS:
        function(torch.randn(3), seed)
    assert not stats.breaks and len(stats.graphs) == 2


def test_what_is_computed_with_it_breaks_the_graph():
    function, stats = compiled(remainder)
    for seed in SEEDS:
        function(torch.randn(3), seed)
    assert set(stats.codes()) <= {"varying-number"} and len(stats.graphs) <= 3


@pytest.mark.parametrize("number", SEEDS)
def test_numbers_that_are_drawn(number):
    assert is_drawn(number)


@pytest.mark.parametrize("number", [2**31, -(2**31), 2**63 - 1, sys.maxsize, -(2**63), 2**64 - 1, 7, -5, 0])
def test_small_numbers_and_limits_of_types_are_not(number):
    assert not is_drawn(number)


def test_limits_stay_constants():
    def clipped(x, end):
        return x[:end] * 2

    function, stats = compiled(clipped)
    for end in (2, sys.maxsize, 3, sys.maxsize, 2):
        x = torch.randn(5)
        assert torch.equal(function(x, end), clipped(x, end))
    assert not stats.breaks
