"""`itertools.count` objects from outside in compiled functions."""

from __future__ import annotations

import itertools

import pytest
import torch
from compile_runs import compiled


def one(x, ids):
    return x + next(ids)


def several(x, ids):
    taken = [next(ids) for _ in range(3)]
    return x * taken[0], taken, next(ids, None)


def in_a_loop(x, ids):
    for number in ids:
        x = x + number
        if number % 3 == 0:
            return x, number


def zipped(x, ids):
    return [x + number for number, _ in zip(ids, "ab", strict=False)]


def passed_on(x, ids):
    next(ids)
    return x, ids, itertools.islice(ids, 2)


def across_a_break(x, ids):
    x = x + next(ids)
    torch._dynamo.graph_break()
    return x * next(ids)


def and_an_exception(x, ids):
    x = x + next(ids)
    try:
        raise KeyError(next(ids))
    except KeyError as error:
        return x, error.args


def untouched(x, ids):
    return x + 1, ids is None


def _plain(value):
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return list(value) if isinstance(value, itertools.islice) else repr(value)


PROGRAMS = (one, several, in_a_loop, zipped, passed_on, across_a_break, and_an_exception, untouched)


@pytest.mark.parametrize("start", [(0,), (5, 2), (3, -1), (0.5,), (3, 1.0)], ids=str)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs(program, start):
    if program is in_a_loop and start == (0.5,):
        pytest.skip("it would never end")
    run, said = compiled(program)
    plain, traced = itertools.count(*start), itertools.count(*start)
    for _ in range(5):
        found, expected = _plain(run(torch.ones(2), traced)), _plain(program(torch.ones(2), plain))
        assert (found, repr(traced)) == (expected, repr(plain))
    of_ints = all(isinstance(number, int) for number in start)
    assert bool(said.breaks) == (program is across_a_break or not (of_ints or program is untouched))


def test_the_same_one_twice():
    def program(x, ids, others):
        return x + next(ids) * 10 + next(others)

    run, _ = compiled(program)
    for same in (True, False, True):
        first = itertools.count(1)
        second = first if same else itertools.count(1)
        assert run(torch.zeros(1), first, second).item() == (12 if same else 11)


def test_one_graph_serves_all_numbers():
    """Also where something else takes numbers while the function is compiled."""
    ids = itertools.count(3)
    run, said = compiled(one)
    for taken in range(5):
        assert run(torch.zeros(1), ids).item() == 3 + 2 * taken
        next(ids)
    assert (len(said.graphs), said.breaks) == (1, [])
