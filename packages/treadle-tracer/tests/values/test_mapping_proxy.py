"""`cls.__dict__` of classes from outside: what is read, and which changes of the class lead to another graph."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled


def fresh_class():
    return type("Settings", (), {"scale": 2.0, "kept": 1})


def of_a_name(cls, x):
    return x * cls.__dict__["scale"]


def whether_there(cls, x):
    return x * (3 if "scale" in vars(cls) else 5) * (7 if "absent" in vars(cls) else 11)


def with_a_default(cls, x):
    return x * vars(cls).get("scale", 13.0)


def all_numbers(cls, x):
    return x * sum(value for value in vars(cls).values() if isinstance(value, float))


def stored(cls, x):
    try:
        cls.__dict__["scale"] = 3.0
    except TypeError as error:
        return x + len(str(error))
    return x


@pytest.mark.parametrize("program", [of_a_name, whether_there, with_a_default, all_numbers, stored])
def test_what_is_read_follows_the_class(program):
    cls = fresh_class()
    x = torch.ones(2)
    run, said = compiled(program)
    for change in ({}, {"scale": 4.0}, {"absent": 2.5}):
        for name, value in change.items():
            setattr(cls, name, value)
        assert torch.equal(run(cls, x), program(cls, x))
    del cls.scale
    if program is not of_a_name:
        assert torch.equal(run(cls, x), program(cls, x))
    assert not said.breaks


@pytest.mark.parametrize("program", [of_a_name, whether_there, with_a_default])
def test_names_that_nobody_reads_are_not_guarded(program):
    cls = fresh_class()
    run, said = compiled(program)
    run(cls, torch.ones(2))
    cls.other, cls.kept = 1, 5
    assert torch.equal(run(cls, torch.ones(2)), program(cls, torch.ones(2))) and len(said.graphs) == 1
