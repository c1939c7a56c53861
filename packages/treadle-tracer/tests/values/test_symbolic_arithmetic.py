"""Arithmetic of symbolic numbers: what becomes a node, a condition or a constant, and what fixes the number."""

from __future__ import annotations

import math
import operator
import warnings

import pytest
import torch
from compile_runs import compiled
from value_runs import size, tracer

from treadle_tracer.values.base import Constant
from treadle_tracer.values.joined import SymbolicBool
from treadle_tracer.values.symbolic_arithmetic import _why_not_symbolic, convert, operator_in_graph, symbolic_op
from treadle_tracer.values.tensor import SymbolicValue
from treadle_tracer.values.value import Raised


def number(length=6):
    tx = tracer(x={0: length})
    return tx, size(tx, length)


def test_arithmetic_is_a_node():
    tx, n = number()
    found = symbolic_op(tx, operator.add, [n, Constant(2)])
    assert isinstance(found, SymbolicValue) and found.node(tx).target is operator.add and not tx.symbols.env.guards


def test_a_comparison_is_a_condition_and_no_node():
    tx, n = number()
    calls = tx.graph.calls
    found = symbolic_op(tx, operator.gt, [n, Constant(2)])
    assert isinstance(found, SymbolicBool) and tx.graph.calls == calls and not tx.symbols.env.guards


def test_what_follows_from_facts_is_a_constant():
    tx, n = number()
    assert symbolic_op(tx, operator.ge, [n, Constant(0)]).constant() is True
    assert symbolic_op(tx, operator.sub, [n, n]).constant() == 0


def test_division_by_zero_raises_in_the_program():
    tx, n = number()
    with pytest.raises(Raised) as caught:
        operator_in_graph(tx, operator.floordiv, [n, Constant(0)])
    assert caught.value.value.python_type() is ZeroDivisionError
    assert caught.value.value.new_args[0].constant() == "integer division or modulo by zero"


def test_conversions():
    tx, n = number()
    assert convert(tx, n, float).python_type() is float and not tx.symbols.env.guards
    assert convert(tx, n, complex).constant() == 6 and tx.symbols.env.guards


@pytest.mark.parametrize(
    ("function", "args", "symbolic"),
    [
        (operator.add, [1, 2], True),
        (operator.floordiv, [1, 2], True),
        (operator.pow, [3, 2], True),
        (operator.pow, [3, -1], False),
        (operator.pow, [3, 17], False),
        (operator.lshift, [1, 2], False),
        (operator.and_, [True, False], True),
        (operator.add, [True, False], False),
        (operator.add, [1, "a"], False),
        (math.gcd, [1, 2], False),
        (torch.sym_not, [True], True),
    ],
)
def test_what_unbacked_numbers_may_be_operands_of(function, args, symbolic):
    assert (_why_not_symbolic(function, [Constant(arg) for arg in args]) is None) is symbolic


def test_a_number_that_is_computed_from_sizes_may_be_1():
    """It is no size itself, of which 1 is compiled on its own."""

    def program(x):
        return x + 1, math.gcd(x.shape[0], 4), x.shape[0].bit_length()

    run, said = compiled(program)
    for length in (6, 10, 7, 9):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert run(torch.ones(length))[1:] == program(torch.ones(length))[1:]
    graphs = len(said.graphs)
    for length in (6, 10, 7, 9):
        run(torch.ones(length))
    assert len(said.graphs) == graphs and not said.breaks
