"""What two paths from an undecided jump have in common: one value for both, or none."""

from __future__ import annotations

import torch
from value_runs import size, tracer, wrapped

from treadle_shapes.expr import Gt, Le
from treadle_shapes.torch import raw_expr
from treadle_tracer.trace.join import Join, is_same
from treadle_tracer.values.base import FALSE, NONE, TRUE, Constant, LazyValue
from treadle_tracer.values.joined import JoinedTensor, SymbolicBool
from treadle_tracer.values.sequences import ListValue, TupleValue
from treadle_tracer.values.text import to_str


def joining(length=4, bound=1):
    """A tracer and the join of "the size of x is greater than `bound`" (taken) with its negation."""
    tx = tracer(x={0: length})
    tensor = wrapped(tx, torch.ones(length, 1))
    number = tensor.get_attr(tx, "shape").items[0]
    expr = raw_expr(number.sym)
    return tx, tensor, number, Join(tx, (), Gt(expr, bound), Le(expr, bound))


def test_equal_values_join():
    _, tensor, number, join = joining()
    assert join.value(tensor, tensor) is tensor and join.value(number, number) is number
    assert join.value(Constant("a"), Constant("a")).constant() == "a"
    assert join.value(NONE, Constant(None)) is NONE


def test_different_values_do_not():
    _, tensor, _, join = joining()
    assert join.value(Constant("a"), Constant("b")) is None
    assert join.value(Constant(1), Constant(1.0)) is None
    assert join.value(ListValue([]), ListValue([])) is None  # two lists, which the program can tell apart
    assert join.value(tensor, NONE) is None


def test_texts_of_symbolic_numbers_are_not_looked_at():
    tx, _, number, join = joining()
    text = to_str(tx, number)
    assert join.value(text, Constant("4")) is None and join.value(text, text) is text
    assert not tx.symbols.env.guards


def test_two_truths_are_the_condition():
    tx, _, _, join = joining()
    found = join.value(TRUE, FALSE)
    assert isinstance(found, SymbolicBool) and not tx.symbols.env.guards
    assert found.obj is True and tx.symbols.env.guards


def test_tuples_join_item_by_item():
    _, _, _, join = joining()
    found = join.value(TupleValue([TRUE, Constant(3)]), TupleValue([FALSE, Constant(3)]))
    assert isinstance(found.items[0], SymbolicBool) and found.items[1].constant() == 3
    assert join.value(TupleValue([TRUE]), TupleValue([TRUE, TRUE])) is None
    assert join.value(TupleValue([Constant(1)]), TupleValue([Constant(2)])) is None


def test_a_size_joins_with_the_number_that_it_is_on_the_other_path():
    _, _, number, join = joining()
    assert join.value(number, Constant(1)) is number  # at most 1, and sizes start at 1
    assert join.value(number, Constant(2)) is None
    _, _, number, join = joining(bound=2)
    assert join.value(number, Constant(1)) is None  # 1 or 2


def test_an_expanded_tensor_joins_with_the_tensor_itself():
    tx, _, number, _ = joining()
    expr = raw_expr(number.sym)
    row = wrapped(tx, torch.ones(1, 3), "row")
    join = Join(tx, (), Gt(expr, 1), Le(expr, 1))
    expanded = row.call_method(tx, "expand", [number, Constant(-1)], {})
    row.node(tx)
    found = join.value(expanded, row)
    assert isinstance(found, JoinedTensor) and join.value(expanded, row) is found
    assert "joined" not in expanded.known_node.meta
    join.commit()
    assert expanded.known_node.meta["joined"][1] is row.known_node and tx.tensor_of_fake(expanded.fake) is found
    found.settle()
    assert tx.symbols.env.guards


def test_a_tensor_with_other_elements_joins_none():
    tx, _, number, join = joining()
    row = wrapped(tx, torch.ones(1, 3), "row")
    row.node(tx)
    doubled = tx.binary_op("*", row, Constant(2))
    assert join.value(doubled, row) is None


def test_what_the_taken_path_computes_is_allowed_where_a_size_is_one_on_the_other():
    tx, _, number, join = joining()
    row = wrapped(tx, torch.ones(1, 3), "row")
    node = row.call_method(tx, "expand", [number, Constant(-1)], {}).known_node
    assert join.allows([node])
    assert not joining(bound=2)[3].allows([node])


def test_is_same_looks_through_values_that_were_not_read():
    from treadle_tracer.source import LocalSource

    tx = tracer()
    lazy = LazyValue(3, LocalSource("n"))
    value = lazy.force(tx)
    assert is_same(lazy, value) and not is_same(lazy, Constant(4))
    assert is_same(Constant("a"), Constant("a")) and not is_same(Constant(True), Constant(1))
    assert size(tracer(y={0: 5}), 5, "y") is not None
