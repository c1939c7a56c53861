"""Generic aliases and unions from outside are guarded by equality, and by identity where the program asks."""

from __future__ import annotations

import collections.abc

import torch
from compile_runs import compiled, item


def agree(function, *sets):
    """The number of graphs for calls with these arguments; results are eager's, and what is returned is the argument itself."""
    fn, recorder = compiled(function)
    for args in sets:
        mine, own = fn(torch.ones(2), *args), function(torch.ones(2), *args)
        assert torch.equal(mine[0], own[0]) and mine[1] is own[1]
    return len(recorder.graphs)


def test_an_equal_alias_is_as_good():
    def f(x, a):
        return x + len(a.__args__), a

    assert agree(f, (list[int],), (list[int],), (int | None,), (int | None,)) == 2
    assert agree(f, (dict[int, str],), (dict[int, float],), (dict[int, str],)) == 2
    assert agree(f, *[(collections.abc.Iterator[list[int]],)] * 3) == 1


def test_a_question_about_identity_guards_it():
    kept = list[int]

    def both(x, a, b):
        return (x + 1 if a is b else x - 1), a

    def other(x, a):
        return (x + 1 if a is kept else x - 1), a

    agree(both, (kept, kept), (kept, list[int]), (list[int], list[int]), (kept, kept), (list[str], kept))
    agree(other, (kept,), (list[int],), (kept,), (list[int],))


class Meta(type):
    asked: list[int] = []

    def __eq__(cls, other):
        Meta.asked.append(1)
        return cls is other

    __hash__ = type.__hash__


class Own(metaclass=Meta):
    pass


def test_equality_of_the_program_is_not_run():
    def f(x, a):
        return x + 1, a

    alias = list[Own]
    Meta.asked.clear()
    fn, _ = compiled(f)
    for _ in range(3):
        fn(torch.ones(2), alias)
    assert not Meta.asked


def test_annotations_of_inner_functions_across_a_break():
    def f(x):
        def inner(y: list[int], z: collections.abc.Iterator[int] | None = None) -> dict[str, int]:
            return len(y)

        item(x.sum())
        return x + inner([1, 2]), None

    assert agree(f, (), (), ()) == agree(f, ())
