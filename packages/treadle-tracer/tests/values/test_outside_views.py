"""Views of dicts that a compiled function is given, and `all` and `any` of truths that tensors hold."""

from __future__ import annotations

import collections

import pytest
import torch
from compile_runs import compiled


class Holder:
    def __init__(self, mapping):
        self.mapping = mapping
        self.keys, self.values, self.items = mapping.keys(), mapping.values(), mapping.items()


def reads(x, holder):
    found = x + len(holder.keys) + sum(holder.values)
    return found, list(holder.items), "a" in holder.keys, type(holder.keys).__name__, holder.keys


def sees_changes(x, holder):
    holder.mapping["new"] = 5
    return x + len(holder.keys) + sum(holder.values)


@pytest.mark.parametrize("cls", [dict, collections.OrderedDict])
def test_views_from_outside(cls):
    for program in (reads, sees_changes):
        run, said = compiled(program)
        for contents in ({"a": 1, "b": 2}, {"a": 1, "b": 2}, {"b": 3}, {}):
            one, other = Holder(cls(contents)), Holder(cls(contents))
            expected, found = program(torch.ones(1), one), run(torch.ones(1), other)
            assert str(found) == str(expected) and other.mapping == one.mapping
            assert program is sees_changes or found[-1] is other.keys
        assert not said.breaks


def all_of_one(x, y):
    if not all(torch.equal(a, b) for a, b in [(x, y)]):
        raise ValueError("differs")
    return x + 1


def any_of_one(x, y):
    if any([x is None, (x != y).any(), y is None]):
        raise ValueError("differs")
    return x + 1


def behind_it(x, y):
    if not all([torch.equal(x, y), x.dim() == 1, len(y) == 3]):
        raise ValueError("differs")
    return x + 1


def of_two(x, y):
    if not all(torch.equal(a, b) for a, b in [(x, y), (y, x)]):
        raise ValueError("differs")
    return x + 1


def with_effects(x, y, seen=None):
    def check(a, b):
        SEEN.append(len(a))
        return torch.equal(a, b)

    if not all(check(a, b) for a, b in [(x, y), (x, x)]):
        raise ValueError("differs")
    return x + 1


def that_raises_behind(x, y):
    if not all(torch.equal(x, a) if a is not None else 1 / 0 for a in (y, None)):
        raise ValueError("differs")
    return x + 1


def of_an_iterator(x, y):
    truths = iter([torch.equal(x, y), torch.equal(y, x), 1])
    return x + any(truths) + 10 * len(list(truths))


def of_a_generator_that_goes_on(x, y):
    truths = (torch.equal(x, other) for other in (y, x, y))
    return x + any(truths) + 10 * len(list(truths))


def of_a_generator_in_a_variable(x, y):
    return x + all(truths := (torch.equal(x, other) for other in (x, y, x))) + 10 * len(list(truths))


class Says:
    def __bool__(self):
        SEEN.append(1)
        return True


def of_an_object_behind(x, y):
    if not all([torch.equal(x, y), Says()]):
        raise ValueError("differs")
    return x + 1


SEEN: list[int] = []
BROKEN = (
    of_two,
    with_effects,
    that_raises_behind,
    of_an_iterator,
    of_a_generator_that_goes_on,
    of_a_generator_in_a_variable,
    of_an_object_behind,
)
WHOLE = (all_of_one, any_of_one, behind_it)


def _outcome(run, x, y):
    SEEN.clear()
    try:
        found = run(x, y).tolist()
    except (ValueError, ZeroDivisionError) as error:
        found = repr(error)
    return found, list(SEEN)


@pytest.mark.parametrize("program", [*WHOLE, *BROKEN], ids=lambda f: f.__name__)
def test_truths_of_tensors(program):
    run, said = compiled(program)
    x, y = torch.ones(3), torch.zeros(3)
    for other in (x.clone(), y, x.clone()):
        assert _outcome(run, x, other) == _outcome(program, x, other)
    assert bool(said.breaks) == (program not in WHOLE)


def test_equal_numbers_from_outside_count_as_one_whether_or_not_they_are_one_object():
    def program(x, n, m):
        return x + len(list(iter(iter([1, n, 9]).__next__, m))) + [1, n].count(m)

    run, said = compiled(program, fullgraph=True)
    for n, m in ((2, 3), (4, 5), (6, 6), (7, 6), (1000, int("1000")), (8, 8)):
        assert run(torch.zeros(1), n, m) == program(torch.zeros(1), n, m)
    assert len(said.graphs) <= 4
