"""`is` between numbers, strings and tuples, of which Python may have one object or several."""

from __future__ import annotations

import operator

import pytest
import torch
from compile_runs import compiled


class Box:
    pass


BOX = Box()
EMPTY = ()
PAIR = (1, 2)


def constant_tuples_are_one_object_at_every_load(x):
    before, found = None, []
    for _ in range(2):
        pair = (1, 2)
        found.append(pair is before)
        before = pair
    return x + 1, found


def constants_of_an_inner_function(x):
    def inner():
        return (3, 4)

    four = (3, 4)
    return x + 1, inner() is inner(), inner() is four


def a_default_and_a_constant(x, pair=(1, 2)):
    constant = (1, 2)
    return x + 1, pair is constant, (lambda other=(1, 2): other)() is pair


def the_empty_tuple(x):
    BOX.late = 1
    empty = ()
    return x + 1, empty is EMPTY, tuple([]) is EMPTY, PAIR[:0] is EMPTY, (x.shape[:0] is EMPTY), empty is PAIR


def small_numbers(x):
    zero, two, three = 0, 2, 3
    return x + 1, x.shape[0] is two, x.shape[0] - 2 is zero, x.shape[0] is three, len(PAIR) is two


def strings_made_by_the_program(x):
    a, k, abcd = "a", "k", "abcd"
    return x + 1, chr(97) is a, k is "ak"[1:], "".join(["ab", "cd"]) is abcd


def tuples_made_by_the_program(x):
    size = x.shape[0]
    return x + 1, (size,) is (size,), tuple(PAIR) is PAIR, PAIR[:] is PAIR, tuple(v for v in PAIR) is PAIR


PROGRAMS = [f for f in list(globals().values()) if getattr(f, "__code__", None) and f.__code__.co_varnames[0] == "x"]


@pytest.mark.parametrize("dynamic", (None, True))
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_identity(program, dynamic):
    run, _ = compiled(program, dynamic=dynamic)
    for _ in range(2):
        assert run(torch.ones(2))[1:] == program(torch.ones(2))[1:]


def test_a_default_that_is_no_longer_the_constant():
    run, _ = compiled(a_default_and_a_constant)
    for pair in ((1, 2), tuple([1, 2]), (1, 3)):
        assert run(torch.ones(2), pair)[1:] == a_default_and_a_constant(torch.ones(2), pair)[1:]


def bools_of_the_graph(x):
    known = x.isfinite().all().item()
    other = (x > 0).all().item()
    return (
        (x + 1),
        known is False,
        known is True,
        known is not True,
        known is (not known),
        known is other,
    )


def bools_of_the_graph_and_others(x):
    known = x.isfinite().all().item()
    return x + 1, known is None, known is known, operator.is_(known, False), operator.is_not(known, False)


@pytest.mark.parametrize("whole", (False, True))
@pytest.mark.parametrize("program", (bools_of_the_graph, bools_of_the_graph_and_others))
def test_bools_that_the_graph_computes_are_true_or_false(program, whole):
    run, recorder = compiled(program, fullgraph=whole)
    for numbers in (torch.ones(3), torch.full((3,), torch.inf), -torch.ones(3)):
        expected, got = program(numbers), run(numbers)
        assert torch.equal(got[0], expected[0])
        assert got[1:] == expected[1:]
    assert len(recorder.graphs) == 1
