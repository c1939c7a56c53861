"""Stores to attributes that Python refuses: they raise before anything behind them runs."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled


class Slotted:
    __slots__ = ("k",)
    scale = 1


class Plain:
    pass


class Whole(int):
    pass


class Items(list):
    __slots__ = ()


def deletes(name):
    def change(obj):
        delattr(obj, name)

    return change


def sets(name, value=2):
    def change(obj):
        setattr(obj, name, value)

    return change


CHANGES = [
    (Slotted, sets("scale")),
    (Slotted, sets("other")),
    (Slotted, sets("k")),
    (Slotted, sets("__init__")),
    (Slotted, sets("__doc__")),
    (Slotted, deletes("scale")),
    (Slotted, deletes("other")),
    (Slotted, deletes("k")),
    (Plain, sets("__weakref__")),
    (Plain, sets("__dict__")),
    (Plain, sets("__init__")),
    (Plain, deletes("other")),
    (Plain, deletes("__weakref__")),
    (Whole, sets("real")),
    (Whole, sets("other")),
    (Whole, deletes("imag")),
    (Items, sets("append")),
    (Items, sets("other")),
    (ValueError, sets("args")),
    (ValueError, sets("args", (1, 2))),
    (ValueError, sets("__cause__")),
    (ValueError, sets("__cause__", None)),
    (ValueError, sets("__suppress_context__")),
    (ValueError, sets("__suppress_context__", True)),
    (ValueError, deletes("args")),
    (ValueError, deletes("__cause__")),
    (StopIteration, sets("value")),
]


def _outcome(function, *args):
    torch.manual_seed(0)
    try:
        found = str(function(*args))
    except Exception as error:
        found = repr(error)
    return found, torch.rand(1).item()


@pytest.mark.parametrize("is_outside", [True, False], ids=["outside", "made"])
@pytest.mark.parametrize(
    ("cls", "change"),
    CHANGES,
    ids=lambda x: (
        getattr(x, "__name__", "") + str(x.__closure__[0].cell_contents) if hasattr(x, "__closure__") else x.__name__
    ),
)
def test_refused_before_random_numbers_are_drawn(cls, change, is_outside):
    given = cls() if is_outside else None

    def program(x):
        owner = given if is_outside else cls()
        change(owner)
        return torch.nn.functional.dropout(x, 0.5), type(owner).__name__

    run, _ = compiled(program)
    for _ in range(2):
        assert _outcome(run, torch.ones(3)) == _outcome(program, torch.ones(3))


def test_a_slot_is_deleted():
    def program(x, owner):
        del owner.k
        return x + hasattr(owner, "k")

    run, said = compiled(program, fullgraph=True)
    for _ in range(2):
        owner = Slotted()
        owner.k = 3
        assert torch.equal(run(torch.zeros(1), owner), torch.zeros(1))
        assert not hasattr(owner, "k")
    assert len(said.graphs) == 1


def test_an_empty_cell_is_filled():
    def make():
        cell = 1

        def read(x):
            return x + cell

        def change(value):
            nonlocal cell
            cell = value

        return read, change

    read, change = make()
    found = make()[0].__closure__[0]

    def program(x):
        try:
            return read(x)
        except NameError:
            return x - 1

    def contents(x):
        try:
            return x + found.cell_contents
        except ValueError:
            return x - 1

    for function, cell in ((program, read.__closure__[0]), (contents, found)):
        del cell.cell_contents
        run, said = compiled(function, fullgraph=True)
        assert run(torch.zeros(1)).item() == run(torch.zeros(1)).item() == -1
        cell.cell_contents = 5
        assert run(torch.zeros(1)).item() == 5
        del cell.cell_contents
        assert run(torch.zeros(1)).item() == -1
        assert len(said.graphs) == 2
