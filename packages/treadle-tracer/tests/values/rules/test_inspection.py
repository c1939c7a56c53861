"""Signatures and fields of dataclasses are those of the call, not of the trace."""

from __future__ import annotations

import dataclasses
import functools
import inspect

import pytest
import torch
from compile_runs import compiled


def _world():
    def helper(v, u="k", *, w=2.0):
        return v

    class Owner:
        def __init__(self, a, b=1):
            pass

        def method(self, q=3):
            pass

    @functools.wraps(helper)
    def wrapper(*args):
        return args

    @dataclasses.dataclass
    class Record:
        a: int = 1

    return {
        "helper": helper,
        "Owner": Owner,
        "owner": Owner(1),
        "wrapper": wrapper,
        "Record": Record,
        "inspect": inspect,
        "dataclasses": dataclasses,
    }


PROGRAM = """
def f(x):
    shown = [str(inspect.signature(each)) for each in (helper, Owner, owner.method, wrapper)]
    defaults = [each.default for each in inspect.signature(helper).parameters.values()]
    return x + 1, shown, defaults, [each.name for each in dataclasses.fields(Record)], dataclasses.is_dataclass(Owner)
"""
CHANGES = (
    "helper.__defaults__ = (0.5,)",
    "helper.__kwdefaults__ = {'w': [1]}",
    "helper.__annotations__ = {'v': int}",
    "helper.__code__ = (lambda v, other, *, w: 1).__code__",
    "helper.__signature__ = inspect.signature(lambda z: 1)",
    "Owner.__init__ = lambda self, k: None",
    "Owner.method.__defaults__ = (4,)",
    "Owner.method = lambda self, y: None",
    "wrapper.__wrapped__ = Owner",
    "del wrapper.__wrapped__",
    "Owner.__dataclass_fields__ = {}",
    "Record.__dataclass_fields__['z'] = Record.__dataclass_fields__['a']",
)


@pytest.mark.parametrize("change", CHANGES)
def test_what_has_changed_is_seen(change):
    told = []
    for compile_function in (lambda f: f, lambda f: compiled(f)[0]):
        scope = _world()
        exec(PROGRAM, scope)
        function = compile_function(scope["f"])
        before = function(torch.zeros(1))[1:]
        exec(change, scope)
        told.append((before, function(torch.zeros(1))[1:]))
    assert str(told[0]) == str(told[1])
    assert str(told[0][0]) != str(told[0][1])


class Plain:
    shared = 1

    def __init__(self):
        self.own = 2

    def method(self):
        return 3


OUTSIDE = Plain()


def names(x):
    made = Plain()
    made.later = 3
    del made.own
    return (
        x + 1,
        dir(made),
        dir(OUTSIDE),
        dir(Plain),
        "own" in dir(OUTSIDE),
        dir(torch.nn.Linear(1, 1).training.__class__),
    )


def test_names_of_objects():
    run, said = compiled(names)
    for step in range(3):
        assert str(run(torch.ones(1))) == str(names(torch.ones(1)))
        if step == 0:
            OUTSIDE.another = 1
            Plain.more = 2
    assert said.graphs
    del OUTSIDE.another, Plain.more


def signature_of_a_new_function(x):
    scale = 2

    def inner(first, second=2, *rest, key: int = 3, **more) -> str:
        return first * scale

    found = inspect.signature(inner)
    bound = found.bind(1, key=5)
    return x * len(found.parameters) + found.parameters["second"].default, str(found), bound.arguments


def test_the_signature_of_a_new_function():
    run, _ = compiled(signature_of_a_new_function)
    for _ in range(2):
        assert str(run(torch.ones(1))) == str(signature_of_a_new_function(torch.ones(1)))
