"""The tensor whose elements a computed one has, where something is assumed of sizes."""

from __future__ import annotations

import torch
from value_runs import tracer, wrapped

from treadle_shapes.expr import Eq
from treadle_shapes.torch import raw_expr
from treadle_tracer.trace.elements import Elements


def traced(program, q=4, k=4):
    """(tracer, nodes by name, sizes) of `program(tx, x, bias)`, x of q x k symbolic sizes, bias of 1 x 1."""
    tx = tracer(x={0: q, 1: k})
    x, bias = wrapped(tx, torch.ones(q, k), "x"), wrapped(tx, torch.ones(1, 1), "bias")
    sizes = x.get_attr(tx, "shape").items
    bias.node(tx)
    found = program(tx, x, bias, sizes)
    return tx, bias.known_node, found.known_node, [raw_expr(s.sym) for s in sizes]


def call(tx, function, *args, **kwargs):
    from treadle_tracer.values.base import Constant
    from treadle_tracer.values.value import Value

    as_value = lambda arg: arg if isinstance(arg, Value) else Constant(arg)
    return tx.run_in_graph(
        "call_function", function, [as_value(a) for a in args], {n: as_value(a) for n, a in kwargs.items()}
    )


def causal(tx, x, bias, sizes):
    """The mask of causal attention: `where(rows >= columns, bias, -inf)`."""
    q, k = sizes
    rows = call(tx, torch.unsqueeze, call(tx, torch.arange, q), 1)
    columns = call(tx, torch.unsqueeze, call(tx, torch.arange, k), 0)
    lower = tx.compare(">=", rows, columns)
    return call(tx, torch.where, lower, bias, float("-inf"))


def expanded(tx, x, bias, sizes):
    return bias.call_method(tx, "expand", list(sizes), {})


def test_an_expanded_tensor_has_the_elements_of_the_tensor_at_its_own_size():
    tx, bias, node, (q, k) = traced(expanded)
    assert Elements(tx.symbols.env, (Eq(q, 1), Eq(k, 1))).origin(node) is bias
    assert Elements(tx.symbols.env, (Eq(q, 1),)).origin(node) is node
    assert Elements(tx.symbols.env, ()).origin(node) is node


def test_a_condition_made_of_sizes_is_computed():
    tx, bias, node, (q, k) = traced(causal)
    assert Elements(tx.symbols.env, (Eq(q, 1), Eq(k, 1))).origin(node) is bias
    assert Elements(tx.symbols.env, (Eq(q, 2), Eq(k, 2))).origin(node) is node  # true and false elements
    assert Elements(tx.symbols.env, ()).origin(node) is node  # sizes that are not known


def test_large_conditions_are_not_computed():
    tx, _, node, (q, k) = traced(causal)
    assert Elements(tx.symbols.env, (Eq(q, 65), Eq(k, 65))).origin(node) is node


def test_arithmetic_ends_the_search():
    tx, _, node, (q, k) = traced(lambda tx, x, bias, sizes: call(tx, torch.add, bias, 1))
    assert Elements(tx.symbols.env, (Eq(q, 1), Eq(k, 1))).origin(node) is node
