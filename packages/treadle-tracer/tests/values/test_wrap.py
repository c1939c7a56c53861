"""Outside objects get the kind of their type, and the guards that the kind relies on."""

from __future__ import annotations

import collections
import functools
import math
import types
import typing

import pytest
import torch
from compile_runs import compiled
from value_runs import guards, tracer, wrapped

from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ConstSource
from treadle_tracer.values.base import Constant, LazyValue, Method
from treadle_tracer.values.callables import CallableValue, DisabledFunction
from treadle_tracer.values.functions import (
    BoundMethod,
    ClassValue,
    FunctionValue,
    ModuleObject,
)
from treadle_tracer.values.generic_alias import GenericAlias
from treadle_tracer.values.growing import OutsideList, OutsideTuple
from treadle_tracer.values.mapping_proxy import MappingProxyValue
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.modules import ModuleValue
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.opaque import OpaqueValue
from treadle_tracer.values.outside_sets import OutsideSet
from treadle_tracer.values.sequences import ListValue, TupleValue
from treadle_tracer.values.sets import SetValue
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.wrap import from_constant


class Plain:
    def method(self):
        return self


class Words(dict):
    pass


def plain_function():
    return None


def disabled():
    return None


disabled._treadle_disabled = True
Point = collections.namedtuple("Point", "x y")

KINDS = [
    (3, Constant), (None, Constant), (torch.float32, Constant), ((1, 2), OutsideTuple), (Point(1, 2), TupleValue), ([1], OutsideList),
    (collections.deque([1]), ListValue), ({"a": 1}, DictValue), (collections.OrderedDict(a=1), DictValue), ({1}, OutsideSet),
    (frozenset({1}), OutsideSet), (types.MappingProxyType({"a": 1}), MappingProxyValue), (Plain(), ObjectValue), (Words(a=1), ObjectValue),
    (Plain().method, BoundMethod), ([].append, Method), (plain_function, FunctionValue), (disabled, DisabledFunction),
    (len, CallableValue), (torch.relu, CallableValue), (str.upper, CallableValue), (Plain, ClassValue), (math, ModuleObject),
    (list[int], GenericAlias), (typing.Optional[int], GenericAlias), (functools.partial(len), ObjectValue),
    (torch.nn.Linear(1, 1), ModuleValue), (torch.ones(1), TensorValue),
]  # fmt: skip


@pytest.mark.parametrize(("obj", "kind"), KINDS, ids=lambda x: getattr(x, "__name__", type(x).__name__))
def test_kinds(obj, kind):
    tx = tracer()
    found = wrapped(tx, obj)
    assert type(found) is kind
    assert guards(tx) or kind is TensorValue


def test_an_item_of_a_container_is_not_looked_at():
    tx = tracer()
    found = wrapped(tx, [Plain()])
    assert isinstance(found.items[0], LazyValue)
    assert guards(tx) == [("x", "type_is", list), ("x", "len", 1)]


def test_one_object_at_two_sources():
    tx, obj = tracer(), Plain()
    one, two = wrapped(tx, obj, "a"), wrapped(tx, obj, "b")
    assert one is two and guards(tx)[-1][:2] == ("b", "same_object")
    assert wrapped(tx, plain_function, "f") is wrapped(tx, plain_function, "g")
    assert guards(tx)[-1] == ("g", "is", plain_function)


def test_a_known_object_needs_no_guard():
    tx = tracer()
    assert isinstance(tx.wrap_known(Plain), ClassValue) and isinstance(tx.wrap(3, ConstSource(3)), Constant)
    assert guards(tx) == []


@pytest.mark.parametrize("obj", [{Plain()}, type("Numbers", (set,), {})()], ids=["set", "subclass"])
def test_objects_that_break_the_graph(obj):
    with pytest.raises(Unsupported):
        wrapped(tracer(), obj)


@pytest.mark.parametrize(
    "use",
    [
        lambda tx, value: value.get_attr(tx, "shape"),
        lambda tx, value: value.truth(tx),
        lambda tx, value: value.constant(),
        lambda tx, value: tx.binary_op("+", value, Constant(1)),
        lambda tx, value: tx.wrap_known(torch.relu).call(tx, [value], {}),
    ],
)
def test_opaque_objects_break_the_graph_where_they_are_looked_into(use):
    tx = tracer()
    value = wrapped(tx, torch.ones(2).to_sparse())
    assert isinstance(value, OpaqueValue) and guards(tx)
    with pytest.raises(Unsupported) as error:
        use(tx, value)
    assert error.value.code == "tensor-kind"


def test_constants_of_the_trace():
    tx = tracer()
    made = from_constant(tx, {"a": (1, [2, {3}])})
    assert isinstance(made, DictValue) and guards(tx) == []
    items = made.lookup(tx, Constant("a")).items
    assert items[0].constant() == 1 and isinstance(items[1], ListValue) and isinstance(items[1].items[1], SetValue)
    assert from_constant(tx, ValueError("no")).new_args[0].constant() == "no"
    with pytest.raises(Unsupported, match="made while tracing"):
        from_constant(tx, iter([1]))


class Pair(typing.NamedTuple):
    first: torch.Tensor
    second: int = 2


class Marked(Pair):
    """A class statement without `__slots__`: instances have a dict."""


def test_attributes_of_named_tuples():
    def program(x, pair):
        return (
            x + pair.first,
            hasattr(pair, "mark"),
            getattr(pair, "mark", None),
            pair._replace(second=3).second,
            [*pair],
        )

    run, said = compiled(program)
    for mark in (None, 5, 6):
        pair = Marked(torch.ones(2))
        if mark is not None:
            pair.mark = mark
        assert run(torch.ones(2), pair)[1:4] == (mark is not None, mark, 3)
    assert not said.breaks and len(said.graphs) == 3
