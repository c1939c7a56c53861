"""Every interval operation contains every value it can produce."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies_shapes import EXAMPLES

from treadle_shapes import ranges
from treadle_shapes.ranges import INF, TRANSFER
from treadle_shapes.rewrite import EVALUATE

SMALL = {"pow": (0, 6), "shl": (0, 6), "shr": (0, 6)}


@st.composite
def interval_with_member(draw, low=-40, high=40):
    value = draw(st.integers(low, high))
    a = draw(st.one_of(st.integers(0, 20).map(lambda d: value - d), st.just(-INF) if low < 0 else st.just(low)))
    b = draw(st.one_of(st.integers(0, 20).map(lambda d: value + d), st.just(INF)))
    return (max(a, low) if low >= 0 else a, b), value


@pytest.mark.parametrize("op", sorted(set(TRANSFER) - {"where", "min", "max"}))
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_binary_results_stay_inside(op, data):
    x, a = data.draw(interval_with_member())
    y, b = data.draw(interval_with_member(*SMALL.get(op, (-40, 40))))
    if op in ("floordiv", "mod") and b == 0:
        return
    low, high = TRANSFER[op](x, y)
    assert low <= EVALUATE[op](a, b) <= high


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(interval_with_member(), min_size=1, max_size=3), st.integers(-5, 5))
def test_linear_and_extrema_stay_inside(parts, c):
    intervals, values = [p[0] for p in parts], [p[1] for p in parts]
    for op, function in (("min", min), ("max", max)):
        low, high = TRANSFER[op](*intervals)
        assert low <= function(values) <= high
    low, high = ranges.scale(intervals[0], c)
    assert low <= c * values[0] <= high
    low, high = ranges.mul(intervals[0], intervals[-1])
    assert low <= values[0] * values[-1] <= high
    low, high = ranges.add(intervals[0], intervals[-1])
    assert low <= values[0] + values[-1] <= high


@settings(max_examples=EXAMPLES, deadline=None)
@given(interval_with_member(), interval_with_member(), st.booleans())
def test_a_selection_stays_inside(a, b, first):
    low, high = TRANSFER["where"](None, a[0], b[0])
    assert low <= (a if first else b)[1] <= high


def test_every_integer_function_has_an_interval():
    from treadle_shapes.nodes import CONSTRUCT
    from treadle_shapes.rewrite import BUILD

    rounding_of_floats = {"floor", "ceil", "trunc", "round"}
    integer = set(BUILD) | {op for op in CONSTRUCT if op.startswith("bit")} | rounding_of_floats
    assert integer - rounding_of_floats == set(TRANSFER)


def test_ends_stay_cheap_to_compute_with():
    low, high = (2, 3), (-(3**9), 2**7)
    for _ in range(200):
        low, high = ranges.mul(low, low), ranges.mul(high, high)
    assert 0 < low[0] < 1 << 4200 and low[1] == INF and high == (-INF, INF)


def test_tight_where_codegen_needs_it():
    assert ranges.floordiv((0, 63), (8, 8)) == (0, 7)
    assert ranges.mod((0, 7), (8, 8)) == (0, 7)
    assert ranges.mod((8, 10), (8, 8)) == (0, 2)
    assert ranges.mod((0, INF), (8, 8)) == (0, 7)
    assert ranges.floordiv((0, INF), (1, INF)) == (0, INF)
    assert ranges.power((2, 3), (2, 3)) == (4, 27)
    assert ranges.add((10**400, INF), (-INF, 10**400)) == (-INF, INF)


def test_no_operation_overflows_on_huge_numbers():
    huge = (10**400, 10**401)
    for op in sorted(TRANSFER):
        if op != "where":
            TRANSFER[op](huge, (1, 3))
            TRANSFER[op](huge, huge)
