"""The contract of values and trace: the tracer has what `TraceContext` names, and gives away no more than that."""

from __future__ import annotations

import types
import weakref

import pytest
from value_runs import guards, tracer, wrapped

from treadle_tracer.source import LocalSource
from treadle_tracer.trace.tracer import Tracer
from treadle_tracer.values.base import Constant
from treadle_tracer.values.class_lookup import MISSING, LooksUp, is_data_descriptor, lookup, lookup_owner
from treadle_tracer.values.constants import is_constant_object, is_trusted_function, is_trusted_name
from treadle_tracer.values.value import NotConstant, Raised, TraceContext, Value, call_special, special_method


def members(protocol: type) -> set[str]:
    return {name for name in (*vars(protocol), *protocol.__annotations__) if not name.startswith("_")}


NAMED = members(TraceContext) | members(LooksUp)


@pytest.mark.parametrize("name", sorted(NAMED))
def test_the_tracer_has_what_the_context_names(name):
    assert hasattr(tracer(), name)


def test_functions_of_values_stand_in_the_tracer_only_where_the_context_names_them():
    foreign = {
        name
        for name, member in vars(Tracer).items()
        if isinstance(member, types.FunctionType) and member.__module__ != Tracer.__module__
    }
    assert foreign - NAMED == set()


class Bare(Value):
    """A value of a class without special methods."""

    def python_type(self):
        return object


def test_defaults_of_a_value():
    tx, value = tracer(), Bare()
    assert value.truth(tx) is True and not value.is_constant() and value.identity() is value.hash_key(tx)
    assert value.as_dict(tx) is None
    with pytest.raises(NotConstant) as caught:
        value.constant()
    assert caught.value.value is value


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (lambda tx, v: v.iterate(tx), "is not iterable"),
        (lambda tx, v: v.get_item(tx, v), "is not subscriptable"),
        (lambda tx, v: v.length(tx), "has no len()"),
        (lambda tx, v: v.next(tx), "is not an iterator"),
        (lambda tx, v: v.as_index(tx), "cannot be interpreted as an integer"),
        (lambda tx, v: v.contains(tx, v), "is not iterable"),
    ],
)
def test_what_a_class_lacks_raises_a_type_error_in_the_program(operation, message):
    with pytest.raises(Raised) as caught:
        operation(tracer(), Bare())
    assert caught.value.value.python_type() is TypeError
    assert message in caught.value.value.new_args[0].constant()


class Sized:
    def __len__(self):
        return 3


def test_special_methods_are_found_on_the_class_and_guarded_once():
    tx = tracer()
    value = wrapped(tx, Sized())
    assert value.length(tx) == 3 and value.truth(tx) is True
    assert special_method(tx, value, "__getitem__") is None
    assert call_special(tx, value, "__len__", []).constant() == 3
    (facts,) = [argument for _, op, argument in guards(tx) if op == "type_lookup"]
    assert [fact for fact in facts if fact[0] == "__len__"] == [("__len__", "refers", weakref.ref(Sized.__len__))]
    assert ("__getitem__", "lacks", None) in facts


def test_lookup():
    tx = tracer()
    assert lookup(tx, Sized, "__len__") is Sized.__dict__["__len__"] and lookup_owner(tx, Sized, "__len__") is Sized
    assert lookup(tx, Sized, "nothing") is MISSING and lookup_owner(tx, Sized, "nothing") is None
    before = len(guards(tx))
    assert lookup(tx, dict, "keys") is dict.keys and len(guards(tx)) == before  # a built-in class cannot change


def test_data_descriptors():
    tx = tracer()
    assert is_data_descriptor(tx, property())
    assert not is_data_descriptor(tx, len) and not is_data_descriptor(tx, 3)


def test_constants_and_trust():
    import enum

    class Colour(enum.Enum):
        RED = 1

    assert all(map(is_constant_object, (None, 1, "a", slice(1, None), Colour.RED, ...)))
    assert not any(map(is_constant_object, ([], (1,), slice([], None), Sized())))
    assert is_trusted_name("torch.nn") and not is_trusted_name("torchish") and not is_trusted_name(None)
    assert is_trusted_function(len) and not is_trusted_function(members)


def test_a_constant_found_at_a_source_is_guarded():
    tx = tracer()
    assert isinstance(tx.wrap(5, LocalSource("n")), Constant)
    assert guards(tx) == [("n", "equals", 5)]
