"""Weak references that compiled functions make and follow."""

from __future__ import annotations

import weakref
from collections import OrderedDict

import pytest
import torch
from compile_runs import compiled


class Target:
    def __init__(self, value=3):
        self.value = value


KEPT = Target(7)
REFERENCE = weakref.ref(KEPT)


def followed(x):
    target = Target()
    return x * weakref.ref(target)().value


def of_an_outside_object(x):
    reference = weakref.ref(KEPT)
    return x * reference().value, reference is REFERENCE, reference() is KEPT


def one_for_each_object(x):
    target = Target()
    return x + 1, weakref.ref(target) is weakref.ref(target), weakref.ref(target) == weakref.ref(target)


def sees_changes(x):
    target = Target()
    reference = weakref.ref(target)
    target.value = 5
    return x + reference().value


def leaves_with_its_object(x):
    target = Target()
    return x + 1, target, weakref.ref(target)


def leaves_alone(x):
    target = Target()
    reference = weakref.ref(target)
    return x + 1, reference


def of_nothing_held(x):
    def made():
        target = Target()
        return weakref.ref(target)

    reference = made()
    return x + (weakref.ref(Target())() is None) + (reference() is None)


class Equal(Target):
    def __eq__(self, other):
        return True

    __hash__ = Target.__hash__


def compared_by_the_program(x):
    first, second = Equal(1), Equal(2)
    return x + 1, weakref.ref(first) == weakref.ref(second)


def compared(x):
    pairs = [(Target(1), Target(1)), (OrderedDict(a=1), OrderedDict(a=1)), (OrderedDict(a=1), OrderedDict(a=2))]
    return x + 1, [(weakref.ref(a) == weakref.ref(b), weakref.ref(a) != weakref.ref(b)) for a, b in pairs]


def of_a_dict_that_is_an_attribute(x):
    target = Target(OrderedDict(a=3))
    reference = weakref.ref(target.value)
    return x * reference()["a"], reference() is target.value


def of_a_dict_that_leaves_with_its_owner(x):
    target = Target(OrderedDict(a=3))
    return x * 2, target, weakref.ref(target.value)


def of_a_dict_that_is_replaced(x):
    target = Target(OrderedDict(a=3))
    reference = weakref.ref(target.value)
    target.value = 3
    return x * 2, reference() is None


def of_a_dict_whose_owner_is_dropped(x):
    target = Target(OrderedDict(a=3))
    reference = weakref.ref(target.value)
    del target
    return x * 2, reference() is None


def of_a_dict_that_nothing_holds(x):
    def made():
        entries = OrderedDict(a=1)
        return weakref.ref(entries)

    return x * 2, made()() is None


def dropped(x):
    target = Target()
    reference = weakref.ref(target)
    before = reference() is target
    del target
    return x + 1, before, reference() is None


def with_a_callback(x):
    calls = []
    target = Target()
    reference = weakref.ref(target, calls.append)
    del target
    return x + len(calls), reference


def in_a_list(x):
    held = [Target()]
    reference = weakref.ref(held[-1])
    held.clear()
    return x + 1, reference() is None


def as_keys(x):
    known, target = weakref.WeakKeyDictionary(), Target()
    known[target] = 4
    return x * known[target] + len(known)


def in_a_set(x):
    known = weakref.WeakSet([KEPT])
    return x * len(known) + (KEPT in known)


def of_a_number(x):
    try:
        weakref.ref(3)
    except TypeError as error:
        return x + 1, str(error)


def as_an_attribute(x):
    """As `abc` of torchsde looks at all attributes of an instance."""
    target = Target()
    names = [name for name in dir(target) if getattr(getattr(target, name), "is_abstract", False)]
    before = target.__weakref__
    reference = weakref.ref(target)
    return x + len(names), before, target.__weakref__ is reference, Target().__weakref__, KEPT.__weakref__ is REFERENCE


def _plain(value):
    if isinstance(value, (tuple, list)):
        return [*map(_plain, value)]
    if isinstance(value, OrderedDict):
        return [*value.items()]
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, weakref.ref):
        return ("reference", _plain(value()))
    if isinstance(value, Target):
        return _plain(value.value)
    return getattr(value, "value", value if isinstance(value, (bool, str, type(None))) else None)


WHOLE = (
    followed,
    of_an_outside_object,
    one_for_each_object,
    sees_changes,
    leaves_with_its_object,
    compared_by_the_program,
    compared,
    of_a_dict_that_is_an_attribute,
    of_a_dict_that_leaves_with_its_owner,
    as_keys,
    in_a_set,
    as_an_attribute,
)
LEFT = (
    leaves_alone,
    of_nothing_held,
    of_a_dict_that_is_replaced,
    of_a_dict_whose_owner_is_dropped,
    of_a_dict_that_nothing_holds,
    dropped,
    with_a_callback,
    in_a_list,
    of_a_number,
)


@pytest.mark.parametrize("program", (*WHOLE, *LEFT), ids=lambda program: program.__name__)
def test_programs(program):
    run, said = compiled(program)
    for _ in range(2):
        assert _plain(run(torch.ones(2))) == _plain(program(torch.ones(2)))
    assert bool(said.breaks or said.skips) == (program not in WHOLE)


def test_an_outside_object_that_is_replaced():
    def program(x, holder):
        return x + weakref.ref(holder[0])().value

    run, said = compiled(program)
    holder = [Target(1)]
    assert run(torch.zeros(1), holder) == 1
    holder[0] = Target(4)
    assert run(torch.zeros(1), holder) == 4


def test_what_only_the_first_calls_refer_to_weakly():
    """The function is left to Python as a whole, and traced again: later calls find the object, and refer to what is outside."""
    made = {}

    def f(x):
        if "w" not in made:
            made["w"] = x.sin()
            made["r"] = weakref.ref(made["w"], lambda reference: None)
        return x * made["r"]()

    fast, said = compiled(f)
    for _ in range(3):
        assert torch.equal(fast(torch.ones(2)), torch.ones(2).sin())
    assert len(said.graphs) == 1 and said.skips
