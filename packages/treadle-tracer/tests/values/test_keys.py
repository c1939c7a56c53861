"""Keys whose classes define `__hash__` and `__eq__` in Python: dicts and sets of them leave the trace as eager's."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled


class Key:
    def __init__(self, v):
        self.v = v

    def __eq__(self, other):
        return isinstance(other, Key) and other.v == self.v

    def __hash__(self):
        return hash(self.v)


class KeyOfItems(Key):
    def __hash__(self):
        return len(self.v)


class Overflowing:
    def __eq__(self, other):
        return isinstance(other, Overflowing)

    def __hash__(self):
        return 2**70


class NoNumber:
    def __hash__(self):
        return "a"


def _dict_of_a_changed_key(x):
    a, b = Key(1), Key(2)
    found = {a: x + 1, b: x + 2}
    b.v = 1
    return a, b, found


def _set_of_a_changed_key(x):
    a, b = Key(1), Key(2)
    found = {a, b}
    b.v = 1
    return a, b, found


def _tuples_with_a_changed_key(x):
    a, b = (1, Key(1)), (1, Key(2))
    found = {a: x + 1, b: x + 2}
    b[1].v = 1
    return a, b, found


def _key_with_a_changed_list(x):
    a = KeyOfItems([1])
    found = {a: x + 1}
    a.v.append(2)
    return a, a, found


class KeyOfThree(Key):
    def __init__(self, *v):
        self.v, self.w, self.u = v

    def __hash__(self):
        return hash((self.v, self.w, self.u))


def _key_with_the_same_values_in_other_places(x):
    a = KeyOfThree(1, 1, 2)
    found = {a: x + 1}
    a.w = 2
    return a, a, found


def _changed_before_it_is_hashed(x):
    a, b = Key(1), Key(2)
    b.v = 3
    return a, b, {a: x + 1, b: x + 2}


@pytest.mark.parametrize(
    ("program", "fullgraph"),
    [
        (_dict_of_a_changed_key, False),
        (_set_of_a_changed_key, False),
        (_tuples_with_a_changed_key, False),
        (_key_with_a_changed_list, False),
        (_key_with_the_same_values_in_other_places, False),
        (_changed_before_it_is_hashed, True),
    ],
)
def test_a_key_keeps_the_hash_of_when_it_was_stored(program, fullgraph):
    run, _ = compiled(program, fullgraph=fullgraph)
    for _ in range(2):
        outcomes = [
            (len(found), a in found, b in found) for a, b, found in (program(torch.ones(2)), run(torch.ones(2)))
        ]
        assert outcomes[0] == outcomes[1]


def test_hash_is_what_python_makes_of_the_number():
    def f(x):
        return x + 1, hash(Overflowing()), {Overflowing(): 5}[Overflowing()]

    run, _ = compiled(f, fullgraph=True)
    assert run(torch.ones(2))[1:] == f(torch.ones(2))[1:]


def test_hash_that_is_no_number():
    def f(x):
        try:
            return {NoNumber(): x}
        except TypeError as error:
            return x + 1, str(error)

    run, _ = compiled(f, fullgraph=True)
    assert run(torch.ones(2))[1] == f(torch.ones(2))[1]


ASKED: list[str] = []


class Meta(type):
    def __eq__(cls, other):
        ASKED.append("eq")
        return isinstance(other, Meta)

    def __hash__(cls):
        ASKED.append("hash")
        return 5


class First(metaclass=Meta):
    pass


class Second(metaclass=Meta):
    pass


class Text(str):
    __slots__ = ()

    def __eq__(self, other):
        ASKED.append("eq")
        return isinstance(other, Text)

    def __hash__(self):
        ASKED.append("hash")
        return 5


@pytest.mark.parametrize(("a", "b"), [(First, Second), (Text("a"), Text("b"))], ids=["classes", "texts"])
def test_classes_and_constants_as_keys_are_asked_at_every_call(a, b):
    def f(x):
        return x + 1, len({a: 1, b: 2})

    run, _ = compiled(f)
    assert run(torch.ones(2))[1] == 1
    outcomes = []
    for function in (f, run):
        ASKED.clear()
        outcomes.append((function(torch.ones(2))[1], list(ASKED)))
    assert outcomes[0] == outcomes[1] == (1, ["hash", "hash", "eq"])


def test_classes_as_keys_are_compared_anew_when_what_they_ask_has_changed():
    class ByTag(type):
        def __eq__(cls, other):
            return isinstance(other, ByTag) and cls.tag == other.tag

        def __hash__(cls):
            return hash(cls.tag)

    class A(metaclass=ByTag):
        tag = 1

    class B(metaclass=ByTag):
        tag = 1

    def f(x):
        return x + 1, len({A: 1, B: 2}), A in {B}

    run, _ = compiled(f)
    for tag in (1, 2, 1):
        B.tag = tag
        assert run(torch.ones(2))[1:] == f(torch.ones(2))[1:] == (2 - (tag == 1), tag == 1)
