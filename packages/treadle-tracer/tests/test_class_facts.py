"""What a class is, whatever its metaclass says."""

from __future__ import annotations

import functools
import types

import torch

from treadle_tracer import class_facts


class Meta(type):
    def __getattribute__(cls, name):
        raise AssertionError(name)

    __instancecheck__ = __subclasscheck__ = __eq__ = lambda cls, other: True
    __hash__ = None


class K(metaclass=Meta):
    size = 3

    @property
    def __class__(self):
        raise AssertionError

    @property
    def __dict__(self):
        raise AssertionError


def test_facts_of_a_class():
    assert class_facts.mro_of(K) == (K, object)
    assert class_facts.namespace_of(K)["size"] == 3
    assert class_facts.name_of(K) == class_facts.qualname_of(K) == "K" and class_facts.module_of(K) == __name__
    assert class_facts.flags_of(K) & 1 << 9 and not class_facts.flags_of(int) & 1 << 9
    assert class_facts.module_of(int) == "builtins"
    assert class_facts.has_instance_dict(K) and not class_facts.has_instance_dict(int)


def test_subtypes_and_classes():
    assert class_facts.is_subtype(bool, int) and not class_facts.is_subtype(int, K) and class_facts.is_subtype(K, K)
    assert class_facts.is_class(K) and not class_facts.is_class(K())


def test_own_dict():
    class Plain: ...

    thing = Plain()
    thing.a = 1
    assert class_facts.own_dict(thing) == {"a": 1} and class_facts.own_dict(3) is None


def test_a_class_stands_in_its_module_only_if_it_is_found_there():
    assert class_facts.stands_in_its_module(torch.nn.Linear) and class_facts.stands_in_its_module(int)
    assert not class_facts.stands_in_its_module(type("Linear", (), {"__module__": "torch.nn.modules.linear"}))
    assert not class_facts.stands_in_its_module(type("int", (), {"__module__": "builtins"}))
    assert not class_facts.stands_in_its_module(type("X", (), {"__module__": 3}))


def test_defining_package():
    @functools.wraps(torch.nn.functional.relu)
    def relu(x): ...

    assert class_facts.defining_package(torch.nn.functional.relu) == "torch"
    assert class_facts.defining_package(relu) == __name__.partition(".")[0]
    assert class_facts.defining_package(types.FunctionType(relu.__code__, {"__name__": "torch"})) is None
