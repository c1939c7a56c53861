"""Calls of classes: built-in ones by table, others by `__new__` and `__init__`."""

from __future__ import annotations

import collections
import functools
import random
import typing

import pytest
import torch
from compile_runs import check_program
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


class Settings(dict):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.count = len(self)


class Logged(collections.OrderedDict):
    def __setitem__(self, key, value):
        LOG.append(key)
        super().__setitem__(key, value)


LOG: list[str] = []


def settings(x):
    made = Settings({"a": 1}, b=2)
    made.__init__(c=3)
    return x + made.count, dict(made), dict(Settings(a=4))


def stored_by_methods(x):
    LOG.clear()
    made = Logged([("a", 1)], b=2)
    made.update(Logged(c=3), d=4)
    made.setdefault("e", 5)
    made |= {"f": 6}
    return x + 1, list(LOG), dict(made)


def copied(x):
    LOG.clear()
    made = Logged(a=1)
    return x + 1, made.copy(), made.pop("a"), list(LOG)


@pytest.mark.parametrize("program", [settings, stored_by_methods])
def test_arguments_of_init_of_the_base(program):
    check_program(program, lambda found: (found[0].tolist(), *found[1:]), is_whole=True)


def test_an_ordered_dict_that_is_copied_by_its_own_method():
    check_program(copied, lambda found: (found[0].tolist(), *found[1:]), is_whole=False)


def new_of_numbers_and_texts(x):
    return x + int.__new__(int, 42), int.__new__(int, "4"), float.__new__(float, "2.5"), str.__new__(str, 3)


def test_new_of_numbers_and_texts():
    check_program(new_of_numbers_and_texts, lambda found: (found[0].tolist(), *found[1:]), is_whole=True)


class Loud(str):
    __slots__ = ()

    def upper(self):
        return "!" + super().upper()


class Shifted(int):
    def bit_length(self):
        return 100 + super().bit_length()


LOUD, SHIFTED = Loud("ab"), Shifted(5)


def methods_of_the_base(x):
    made = Loud("cd"), Shifted(9)
    return (
        x + 1,
        LOUD.upper(),
        SHIFTED.bit_length(),
        made[0].upper(),
        made[1].bit_length(),
        LOUD.lower(),
        str.upper(LOUD),
    )


def test_methods_that_a_subclass_of_a_constant_redefines():
    check_program(methods_of_the_base, lambda found: (found[0].tolist(), *found[1:]), is_whole=True)


class Grouped(collections.defaultdict):
    def __init__(self, **kwargs):
        super().__init__(list, **kwargs)


def factory_of_a_subclass(x):
    made = Grouped(a=[1])
    return x + 1, made.default_factory is list, hasattr(made, "default_factory"), made["b"], dict(made)


def test_the_factory_of_a_subclass():
    check_program(factory_of_a_subclass, lambda found: (found[0].tolist(), *found[1:]), is_whole=True)


class Spoken(dict):
    def __iter__(self):
        LOG.append("asked")
        return super().__iter__()


SPOKEN = Spoken(a=1)


def copy_of_one_that_iterates_in_its_own_way(x):
    LOG.clear()
    SPOKEN["b"] = 2
    return x + 1, SPOKEN.copy(), SPOKEN == {"a": 1, "b": 2}, len(SPOKEN), list(LOG)


def test_a_copy_of_one_that_iterates_in_its_own_way():
    check_program(
        copy_of_one_that_iterates_in_its_own_way, lambda found: (found[0].tolist(), *found[1:]), is_whole=False
    )
