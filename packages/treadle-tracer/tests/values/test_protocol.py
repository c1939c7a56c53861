"""Python's protocols over values: operators, comparison, identity, folding."""

from __future__ import annotations

import itertools
import operator

import pytest
import torch
from compile_runs import check_program
from value_runs import size, tracer, wrapped

from treadle_tracer.errors import Unsupported
from treadle_tracer.values import builtin_methods, protocol
from treadle_tracer.values.base import FALSE, TRUE, Constant
from treadle_tracer.values.joined import SymbolicBool, is_same
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.sequences import ListValue
from treadle_tracer.values.tensor import SymbolicValue, TensorValue
from treadle_tracer.values.value import Raised

OPERANDS = [3, -2, 2.5, True, "ab", (1, 2), [1], {1}, {"a": 1}, None]


def outcome(function, *args):
    try:
        return function(*args)
    except Exception as error:
        return type(error)


def plain(value):
    tx = tracer()
    if isinstance(value, ObjectValue):
        return value.cls
    if value.python_type() is dict:
        return {key.constant(): item.constant() for key, item in value.items(tx)}
    if value.python_type() in (list, set):
        return value.python_type()(item.constant() for item in value.unpack(tx))
    return value.constant()


def traced(function, *args):
    tx = tracer()
    try:
        return plain(function(tx, *(tx.from_constant(arg) for arg in args)))
    except Raised as raised:
        return raised.value.python_type()


@pytest.mark.parametrize("text", [*protocol.BINARY, *protocol.COMPARE])
def test_operators_give_what_python_gives(text):
    table = {**{t: f for t, (f, _) in protocol.BINARY.items()}, **{t: f for t, (f, _, _) in protocol.COMPARE.items()}}
    apply = protocol.binary_op if text in protocol.BINARY else protocol.compare
    for a, b in itertools.product(OPERANDS, repeat=2):
        assert traced(lambda tx, x, y: apply(tx, text, x, y), a, b) == outcome(table[text], a, b), (a, text, b)


@pytest.mark.parametrize("text", protocol.UNARY)
def test_unary_operators(text):
    for a in (3, 2.5, "ab", [1]):
        assert traced(lambda tx, x: protocol.unary_op(tx, text, x), a) == outcome(protocol.UNARY[text][0], a)


def test_in_place_operators_change_lists_and_sets():
    tx = tracer()
    items = ListValue([Constant(1)])
    assert protocol.binary_op(tx, "+=", items, ListValue([Constant(2)])) is items and plain(items) == [1, 2]
    assert protocol.binary_op(tx, "*=", items, Constant(2)) is items and plain(items) == [1, 2, 1, 2]


def test_not():
    tx = tracer()
    assert protocol.not_(tx, Constant(0)) is TRUE and protocol.not_(tx, ListValue([Constant(1)])) is FALSE


def test_identity_of_an_undecided_bool_decides_nothing_against_what_is_no_bool():
    tx = tracer(x={0: 4})
    condition = protocol.compare(tx, ">", size(tx, 4), Constant(2))
    assert isinstance(condition, SymbolicBool)
    assert not is_same(tx, condition, Constant(None)) and not tx.symbols.env.guards
    assert is_same(tx, condition, TRUE) and tx.symbols.env.guards


def test_folding():
    tx = tracer(x={0: 4})
    assert protocol.fold(tx, operator.add, [Constant(1), Constant(2)], {}).constant() == 3
    with pytest.raises(Raised) as caught:
        protocol.fold(tx, operator.truediv, [Constant(1), Constant(0)], {})
    assert caught.value.value.python_type() is ZeroDivisionError
    with pytest.raises(Unsupported, match="add of a list"):
        protocol.fold(tx, operator.add, [_opaque(), Constant(2)], {})
    number = size(tx, 4)
    assert protocol.fold(tx, str, [number], {}).constant() == "4" and tx.symbols.env.guards


def _opaque():
    from treadle_tracer.values.value import Value

    class Opaque(Value):
        def python_type(self):
            return list

    return Opaque()


def test_symbolic_numbers_and_tensors_become_nodes():
    tx = tracer(x={0: 4})
    number = size(tx, 4)
    assert isinstance(protocol.binary_op(tx, "+", number, Constant(1)), SymbolicValue)
    assert isinstance(protocol.binary_op(tx, "*", wrapped(tx, torch.ones(2), "y"), Constant(2)), TensorValue)
    assert [node.target for node in tx.graph.graph.nodes if node.op == "call_function"][-2:] == [
        operator.add,
        operator.mul,
    ]


def test_built_in_methods_by_name():
    tx = tracer()
    items = ListValue([Constant(1), Constant(2)])
    assert builtin_methods.call_builtin_method(tx, items, "__len__", None, [], {}).constant() == 2
    assert builtin_methods.call_builtin_method(tx, items, "__contains__", None, [Constant(2)], {}) is TRUE
    assert builtin_methods.call_builtin_method(tx, Constant(5), "__rsub__", None, [Constant(7)], {}).constant() == 2
    builtin_methods.call_builtin_method(tx, items, "__init__", None, [], {})
    assert items.items == []


class Unordered:
    def __lt__(self, other):
        return NotImplemented


class Above:
    def __gt__(self, other):
        return "above"


def orders_of_others(x):
    said = []
    for compare in (
        lambda: Unordered() < Unordered(),
        lambda: Above() < Above(),
        lambda: Unordered() < Above(),
        lambda: Above() >= 1,
    ):
        try:
            said.append(compare())
        except TypeError as error:
            said.append(str(error))
    return x + 1, said


def test_comparisons_that_nobody_implements():
    check_program(orders_of_others, lambda found: (found[0].tolist(), found[1]), is_whole=True)
