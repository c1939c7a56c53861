"""`copy.copy` and `copy.deepcopy` of objects ask what Python's ask, and make what Python's make."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from compile_runs import compiled


class Plain:
    def __init__(self):
        self.k = [1]


class MadeByNew:
    def __new__(cls, *args):
        made = super().__new__(cls)
        made.args = args
        return made


class WithArguments(MadeByNew):
    def __getnewargs__(self):
        return (2,)


class AnswersEverything(Plain):
    def __getattr__(self, name):
        return 1  # for __setstate__, too, which copy then calls


class Stores(Plain):
    def __setattr__(self, name, value):
        object.__setattr__(self, name, [value])


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("cls", [Plain, MadeByNew, WithArguments, AnswersEverything, Stores])
def test_objects(cls, copied):
    def f(x):
        original = cls()
        original.extra = 3
        try:
            made = copied(original)
        except TypeError as error:
            return x + 1, str(error)
        return x + 1, vars(made), made is original, getattr(made, "k", None) is getattr(original, "k", None)

    assert compiled(f)[0](torch.zeros(1))[1:] == f(torch.zeros(1))[1:]


def test_a_copied_partial_is_another():
    def f(x):
        original = functools.partial(max, 1)
        made = copy.copy(original)
        return x + 1, made is original, made(3)

    assert compiled(f)[0](torch.zeros(1))[1:] == f(torch.zeros(1))[1:]


@pytest.mark.parametrize("kind", [set, frozenset])
def test_sets(kind):
    outside = kind(["mrope", "section"])

    def f(x):
        made, both = copy.deepcopy(outside), copy.deepcopy([outside, outside])
        return x + 1, made, made is outside, type(made), both[0] is both[1], sorted(both[0])

    assert compiled(f)[0](torch.zeros(1))[1:] == f(torch.zeros(1))[1:]


def test_changed_copies_of_sets_leave_the_original():
    outside = {1, 2}

    def f(x):
        made = copy.deepcopy(outside)
        made.add(3)
        return x + 1, made, outside

    assert compiled(f)[0](torch.zeros(1))[1:] == ({1, 2, 3}, {1, 2})
    assert outside == {1, 2}


class Shared:
    def __init__(self):
        self.items = [1]

    def first(self):
        return self.items[0]


def test_partials():
    def f(x):
        shared = Shared()
        original = functools.partial(shared.first), functools.partial(max, [1], key=len), shared
        method, plain, again = made = copy.deepcopy(original)
        again.items[0] = 2
        return x + 1, made is original, method(), original[0](), plain.args[0] is original[1].args[0], plain.keywords

    run, recorder = compiled(f)
    assert run(torch.zeros(1))[1:] == f(torch.zeros(1))[1:] == (False, 2, 1, False, {"key": len})
    assert not recorder.breaks


def test_methods_with_the_objects_that_they_are_bound_to():
    def f(x, method):
        shared = Shared()
        made = copy.deepcopy([shared, shared.first, method])
        return x + 1, made[1].__self__ is made[0], made[2].__self__ is method.__self__, made[2]()

    run, recorder = compiled(f)
    assert run(torch.zeros(1), Shared().first)[1:] == (True, False, 1)
    assert not recorder.breaks


def test_a_method_that_leaves_is_the_one_from_outside():
    def f(x, methods):
        return x + 1, methods[0]

    methods = [Shared().first]
    assert compiled(f)[0](torch.zeros(1), methods)[1] is methods[0]
