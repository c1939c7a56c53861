"""Layout questions answered symbolically agree with their meaning on numbers, without torch."""

from __future__ import annotations

import itertools
import operator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies_shapes import EXAMPLES

from treadle_shapes import ShapeEnv, UsageError, evaluate, symbol
from treadle_shapes.sym_node import SymNode, dense_in_order, non_overlapping_and_dense, strides_ascend

SIZES = st.lists(st.integers(0, 4), min_size=1, max_size=4)
A, B = symbol("a", 1), symbol("b", 1)


def contiguous_strides(sizes, order):
    strides, expected = [0] * len(sizes), 1
    for d in order:
        strides[d] = expected
        expected *= max(sizes[d], 1)
    return strides


def addresses(sizes, strides):
    return [sum(i * s for i, s in zip(index, strides, strict=True)) for index in itertools.product(*map(range, sizes))]


@settings(max_examples=3 * EXAMPLES, deadline=None)
@given(st.data(), SIZES)
def test_dense_in_order_means_consecutive_addresses(data, sizes):
    order = list(data.draw(st.permutations(range(len(sizes)))))
    strides = contiguous_strides(sizes, order)
    assert dense_in_order(order, sizes, strides)
    changed = list(strides)
    d = data.draw(st.integers(0, len(sizes) - 1))
    changed[d] += data.draw(st.integers(1, 3))
    elements = 1
    for n in sizes:
        elements *= n
    assert dense_in_order(order, sizes, changed) == (elements == 0 or sizes[d] == 1)


@settings(max_examples=3 * EXAMPLES, deadline=None)
@given(SIZES, st.data())
def test_non_overlapping_and_dense_is_a_permutation_of_memory(sizes, data):
    if 0 in sizes:
        return
    strides = data.draw(
        st.one_of(
            st.permutations(range(len(sizes))).map(lambda order: contiguous_strides(sizes, order)),
            st.lists(st.integers(0, 8), min_size=len(sizes), max_size=len(sizes)),
        )
    )
    cells = addresses(sizes, strides)
    assert non_overlapping_and_dense(ShapeEnv(), sizes, strides) == (sorted(cells) == list(range(len(cells))))


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4))
def test_symbolic_answer_evaluates_to_the_numeric_one(a, b):
    values = {A: a, B: b}
    for sizes, strides in (
        ([A, B, 8], [B * 8, 8, 1]),
        ([A, 8, B], [B * 8, 1, 8]),
        ([A, B], [1, A]),
        ([A, 3, B, 5], [15 * B, 1, 15, 3]),
    ):
        numbers = [evaluate(n, values) for n in sizes], [evaluate(n, values) for n in strides]
        for order in itertools.permutations(range(len(sizes))):
            symbolic = dense_in_order(order, sizes, strides)
            assert evaluate(symbolic, values) == dense_in_order(order, *numbers)
        if len(sizes) == 4:
            symbolic = strides_ascend((1, 3, 2, 0), sizes, strides)
            assert evaluate(symbolic, values) == strides_ascend((1, 3, 2, 0), *numbers)


def test_channels_last_strides():
    assert strides_ascend((1, 3, 2, 0), [2, 3, 4, 5], [60, 1, 15, 3])
    assert not strides_ascend((1, 3, 2, 0), [2, 3, 4, 5], [60, 20, 5, 1])
    assert not strides_ascend((1, 3, 2, 0), [2, 0, 4, 5], [0, 1, 0, 0])


class Adapter:
    """What a SymNode needs of its surroundings."""

    def __init__(self):
        self.env = ShapeEnv()

    def node(self, value):
        return SymNode(self, value)

    int_node = node


def test_bools_count_beside_numbers_as_in_python():
    adapter = Adapter()
    n = adapter.node(adapter.env.create_symbol(6, "n"))
    for name in ("add", "mul", "floordiv", "mod", "eq", "lt", "ge", "bitwise_and", "lshift"):
        operation = {"floordiv": operator.floordiv, "bitwise_and": operator.and_}.get(name) or getattr(operator, name)
        for flag in (n.eq(n.wrap_int(6)), n.wrap_bool(True)):
            assert getattr(n, name)(flag).hint == operation(6, True)
            assert getattr(flag, name)(n).hint == operation(True, 6)
    assert n.wrap_bool(False).and_(n).hint == 0 and n.wrap_bool(True).or_(n).hint == 7


def test_operations_by_name():
    adapter = Adapter()
    n = adapter.node(adapter.env.create_symbol(6, "n"))
    assert n.add(n.wrap_int(2)).mul(n).hint == 48
    assert n.floordiv(n.wrap_int(2)).hint == 3
    assert n.int_truediv(n.wrap_int(4)).hint == 1.5 and n.int_truediv(n.wrap_int(4)).is_float()
    assert n.sym_float().mul(n.wrap_float(0.5)).floor().hint == 3
    assert n.lt(n.wrap_int(7)).sym_ite(n, n.neg()).hint == 6
    assert n.sym_sum([n, n, n.wrap_int(1)]).hint == 13
    assert n.eq(n).is_constant() and n.eq(n).maybe_as_bool() is True
    assert not adapter.env.guards
    with pytest.raises(UsageError, match="not defined on bool"):
        n.eq(n.wrap_int(6)).neg()


@pytest.mark.parametrize("unbacked", [False, True])
def test_quotients_where_numbers_are_divided_as_in_cpp(unbacked):
    adapter = Adapter()
    symbol_of = adapter.env.create_unbacked if unbacked else adapter.env.create_symbol
    n = adapter.node(symbol_of("n", lower=0) if unbacked else symbol_of(6, "n"))
    with adapter.env.dividing_like_c():
        found = n.wrap_float(2.0).float_truediv(n.sym_float().sub(n.wrap_float(1.0)))
        of_int = n.wrap_int(1).int_truediv(n.sub(n.wrap_int(1)))
    assert not adapter.env.divides_like_c
    for size, expected, other in ((0, -2.0, -1.0), (1, float("inf"), float("inf")), (3, 1.0, 0.5)):
        values = {n.value: size}
        assert evaluate(found.value, values) == expected and evaluate(of_int.value, values) == other
    with pytest.raises(ZeroDivisionError):
        plain = n.wrap_float(2.0).float_truediv(n.sym_float().sub(n.wrap_float(1.0)))
        evaluate(plain.value, {n.value: 1})
    assert not adapter.env.guards
