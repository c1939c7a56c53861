"""`obj.__dict__` in compiled functions: one dict for an object, which follows its attributes, and they follow it."""

from __future__ import annotations

import copy

import pytest
import torch
from compile_runs import compiled


class Box:
    def __init__(self):
        self.n, self.k = 0, 1


class Slotted:
    __slots__ = ("__dict__", "a")

    def __init__(self):
        self.a, self.b = 1, 2


class Stores:
    def __set__(self, obj, value):
        obj.__dict__["stored"] = value


class Hides:
    d = Stores()
    n = property(lambda self: "property")


OUTSIDE = Box()


def sees_stores(x):
    box = Box()
    held = box.__dict__
    box.n, box.more = 5, 7
    return x + held["n"], list(held), len(held)


def is_one_dict(x):
    box = Box()
    held, other = box.__dict__, vars(box)
    held["added"] = 3
    return x + box.added, list(other), held is other, held is box.__dict__


def of_an_outside_object(x):
    held = OUTSIDE.__dict__
    OUTSIDE.n = x.shape[0] + 3
    found = held["n"], list(held)
    OUTSIDE.n = 0
    return x, found


def items_removed(x):
    box = Box()
    popped = box.__dict__.pop("n"), box.__dict__.pop("none", 4)
    defaults = box.__dict__.setdefault("k", 3), box.__dict__.setdefault("new", 3)
    last = box.__dict__.popitem()
    return x + 1, popped, defaults, last, hasattr(box, "n"), vars(box).copy()


def an_item_that_is_not_there(x):
    try:
        Box().__dict__.pop("none")
    except KeyError as error:
        return x, error.args


def everything_removed(x):
    box = Box()
    box.__dict__.clear()
    return x, hasattr(box, "n"), box


def of_a_copy(x):
    made = copy.copy(OUTSIDE)
    made.__dict__.pop("n", None)
    made.m = 2
    return x + made.m, vars(made).copy(), hasattr(OUTSIDE, "n"), made


def removed_from_an_outside_object(x):
    OUTSIDE.extra = 1
    return x + OUTSIDE.__dict__.pop("extra"), hasattr(OUTSIDE, "extra"), list(OUTSIDE.__dict__)


def grows_while_it_is_read(x):
    box = Box()
    try:
        for _ in box.__dict__:
            box.more = 1
    except RuntimeError as error:
        return x, str(error)


def leaves(x):
    box = Box()
    held = box.__dict__
    box.y = 1
    return x, held, box


def without_slots(x):
    failed = ValueError(1)
    failed.note, failed.__cause__ = 3, None
    return x, list(vars(Slotted())), dict(failed.__dict__)


def of_a_function(x):
    def inner():
        return 1

    inner.k, inner.__name__ = 2, "other"
    return x, dict(inner.__dict__), inner.__dict__ is inner.__dict__


def in_the_order_of_stores(x):
    box = Box()
    held = box.__dict__
    del box.n
    box.n = 3
    return x, list(held), list(box.__dict__.items())


def of_a_module(x):
    module = torch.nn.Linear(2, 2)
    held = module.__dict__
    module.extra = 3
    return x + held["extra"], "training" in held


def with_a_number_as_key(x):
    box = Box()
    box.__dict__[3] = 4
    return x, list(box.__dict__)


def hidden_by_a_property(x):
    held = Hides()
    vars(held)["n"] = x + 1
    return x, dict(vars(held)), held.n


def hidden_by_a_descriptor(x):
    held = Hides()
    held.__dict__.update(d=3)
    return x, dict(vars(held)), held.__dict__.pop("d")


def hidden_by_a_slot(x):
    held = Slotted()
    held.__dict__["a"] = 7
    return x, dict(vars(held)), held.a


PROGRAMS = (
    sees_stores,
    is_one_dict,
    of_an_outside_object,
    items_removed,
    an_item_that_is_not_there,
    everything_removed,
    of_a_copy,
    removed_from_an_outside_object,
    grows_while_it_is_read,
    leaves,
    without_slots,
    of_a_function,
    in_the_order_of_stores,
    of_a_module,
)
BREAKING = (with_a_number_as_key, hidden_by_a_property, hidden_by_a_descriptor, hidden_by_a_slot)


def _plain(value):
    if isinstance(value, Box):
        return ("box", _plain(vars(value)))
    if isinstance(value, dict):
        return [(key, _plain(item)) for key, item in value.items()]
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("program", (*PROGRAMS, *BREAKING), ids=lambda program: program.__name__)
def test_programs(program):
    run, said = compiled(program)
    for _ in range(2):
        assert _plain(run(torch.ones(2))) == _plain(program(torch.ones(2)))
    assert bool(said.breaks or said.skips) == (program not in PROGRAMS)


def test_a_loop_over_attributes_sees_that_one_is_added():
    class Owner:
        pass

    def program(x, owner):
        for value in vars(owner).values():
            x = x * value
            owner.added = 0.25
        return x

    for name in ("a", "added"):
        run, _ = compiled(program)
        for _ in range(2):
            found = []
            for function in (run, program):
                owner = Owner()
                setattr(owner, name, 2.0)
                try:
                    found.append(function(torch.ones(2), owner).tolist())
                except RuntimeError as error:
                    found.append(str(error))
            assert found[0] == found[1]


class Bare:
    __slots__ = ("a",)


def test_objects_without_a_dict():
    def program(x):
        return x + 1, hasattr(Bare(), "__dict__"), hasattr(object(), "__dict__"), hasattr(Slotted(), "__dict__")

    run, said = compiled(program)
    assert run(torch.ones(2))[1:] == program(torch.ones(2))[1:] == (False, False, True)
    assert len(said.graphs) == 1 and not said.breaks
