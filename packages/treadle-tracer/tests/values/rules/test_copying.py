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
