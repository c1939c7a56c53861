"""Calls of classes: built-in ones by table, others by `__new__` and `__init__`."""

from __future__ import annotations

import collections
import functools
import random
import typing

import pytest
import torch
from value_runs import tracer

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import Constant
from treadle_tracer.values.construct import CONSTRUCTORS, allocate, call_new, construct, method_of_class
from treadle_tracer.values.functions import ClassValue, PartialValue
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.value import Raised

Point = collections.namedtuple("Point", "x y", defaults=[7])


class Plain:
    pass


class Meta(type):
    def __call__(cls, *args):
        return 42


class WithMeta(metaclass=Meta):
    pass


class Words(dict):
    pass


def make(cls, *args, **kwargs):
    tx = tracer()
    values = [tx.from_constant(arg) for arg in args]
    return construct(tx, ClassValue(cls), values, {name: tx.from_constant(arg) for name, arg in kwargs.items()})


CALLS = [
    (int, ("12",)), (int, ()), (float, (1,)), (complex, (1, 2)), (bool, (0,)), (bool, ()), (str, (3,)), (bytes, (2,)), (range, (1, 5)),
    (slice, (1, 2)), (list, ("ab",)), (tuple, ([1, 2],)), (set, ([1],)), (frozenset, ([1],)), (torch.device, ("cpu",)), (Point, (1,)),
]  # fmt: skip


@pytest.mark.parametrize(("cls", "args"), CALLS, ids=[cls.__name__ for cls, _ in CALLS])
def test_built_in_classes_give_what_python_gives(cls, args):
    found = make(cls, *args)
    assert found.python_type() is cls
    constant = [item.constant() for item in found.unpack(tracer())] if cls in (list, set) else found.constant()
    assert constant == (list(cls(*args)) if cls in (list, set) else cls(*args))


def test_wrong_arguments_raise_in_the_program():
    for cls, args in ((int, ("x",)), (Plain, (1,)), (Point, ())):
        with pytest.raises(Raised) as caught:
            make(cls, *args)
        assert issubclass(caught.value.value.python_type(), (TypeError, ValueError))


def test_instances():
    made = make(Plain)
    assert isinstance(made, ObjectValue) and made.cls is Plain and made.obj is None
    assert make(WithMeta).constant() == 42
    words = make(Words, [("a", 1)])
    assert words.cls is Words and words.container.owner is words and len(words.container.entries) == 1


class Generator(random.Random):
    pass


@pytest.mark.parametrize("cls", [torch.nn.Parameter, torch._C.DispatchKeySet, Generator])
def test_classes_that_break_the_graph(cls):
    with pytest.raises(Unsupported):
        make(cls, 1)


def test_partials_are_flattened():
    tx = tracer()
    inner = construct(tx, ClassValue(functools.partial), [tx.wrap_known(max), Constant(1)], {})
    outer = construct(tx, ClassValue(functools.partial), [inner, Constant(2)], {})
    assert isinstance(outer.container, PartialValue) and [arg.constant() for arg in outer.container.args] == [1, 2]


def test_a_partial_of_something_that_cannot_be_called():
    tx = tracer()
    with pytest.raises(Raised) as error:
        construct(tx, ClassValue(functools.partial), [Constant(3)], {})
    assert error.value.value.python_type() is TypeError


def test_methods_bound_to_classes():
    tx = tracer()
    made = method_of_class(tx, ClassValue(dict), "fromkeys", [TupleValue([Constant("a")])], {})
    assert made.lookup(tx, Constant("a")).constant() is None
    assert method_of_class(tx, ClassValue(Plain), "__call__", [], {}).cls is Plain
    assert call_new(tx, object.__new__, [ClassValue(Plain)], {}).cls is Plain
    assert allocate(tx, KeyError, [Constant("k")]).new_args[0].constant() == "k"


def test_every_constructor_is_a_class():
    assert all(isinstance(cls, type) for cls in CONSTRUCTORS)


class Options(typing.TypedDict):
    scale: int


def test_typed_dicts_are_dicts():
    made = make(Options, scale=3)
    assert made.python_type() is dict and made.lookup(tracer(), Constant("scale")).constant() == 3
