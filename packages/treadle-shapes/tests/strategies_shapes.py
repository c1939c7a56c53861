"""Random expressions with values for their symbols, for the property tests."""

from __future__ import annotations

import os

from hypothesis import strategies as st

from treadle_shapes import rules
from treadle_shapes.expr import (
    And,
    Eq,
    Le,
    Lt,
    Ne,
    Not,
    Or,
    bit_and,
    bit_or,
    bit_xor,
    maximum,
    minimum,
    symbol,
    where,
)

#: random cases per property; TREADLE_EXAMPLES multiplies it
EXAMPLES = 100 * int(os.environ.get("TREADLE_EXAMPLES", "1"))

#: index symbols (given ranges by the tests), sizes, and one that may be negative
INDICES = [symbol("i"), symbol("j"), symbol("k")]
SIZES = [symbol("n", 1), symbol("m", 2)]
ANY = symbol("z", None)
SYMBOLS = [*INDICES, *SIZES, ANY]

constants = st.one_of(st.integers(-12, 12), st.sampled_from([16, 24, 64, 128, 1000]))
leaves = st.one_of(st.sampled_from(SYMBOLS), constants)
positive = st.one_of(st.integers(1, 12), st.sampled_from([16, 24, 64]), st.sampled_from(SIZES))
divisors = st.one_of(positive, positive, st.integers(-8, -1), st.just(SIZES[0] * SIZES[1]), st.just(SIZES[0] + 1))


def _larger(inner):
    conditions = st.builds(lambda f, a, b: f(a, b), st.sampled_from([Le, Lt, Eq, Ne]), inner, inner)
    return st.one_of(
        st.builds(lambda a, b: a + b, inner, inner),
        st.builds(lambda a, b: a - b, inner, inner),
        st.builds(lambda a, b: a * b, inner, leaves),
        st.builds(lambda a, b: a * b, inner, constants),
        st.builds(lambda a, b: a // b, inner, divisors),
        st.builds(lambda a, b: a % b, inner, divisors),
        st.builds(lambda a, d: a // d * d + a % d, inner, positive),
        st.builds(minimum, inner, inner),
        st.builds(maximum, inner, inner),
        st.builds(where, conditions, inner, inner),
        st.builds(lambda a, n: rules.shift_right(a, n), inner, st.integers(0, 3)),
        st.builds(lambda f, a, b: f(a, b), st.sampled_from([bit_and, bit_or, bit_xor]), inner, inner),
    )


expressions = st.recursive(leaves, _larger, max_leaves=8)
conditions = st.recursive(
    st.builds(lambda f, a, b: f(a, b), st.sampled_from([Le, Lt, Eq, Ne]), expressions, expressions),
    lambda inner: st.one_of(st.builds(And, inner, inner), st.builds(Or, inner, inner), st.builds(Not, inner)),
    max_leaves=4,
)


def within(low, high):
    """An integer of the interval, its ends more often than chance would have it: rules go wrong there first."""
    return st.one_of(st.just(low), st.just(high), st.integers(low, high))


@st.composite
def points(draw):
    """A value for every symbol, inside the symbol's own range."""
    values = {s: draw(st.integers(0, 40)) for s in INDICES}
    values.update({s: draw(st.integers(s.lower, 20)) for s in SIZES})
    values[ANY] = draw(st.integers(-30, 30))
    return values


@st.composite
def ranges_and_points(draw):
    """Ranges for some symbols, symbolic ends among them, and values inside these ranges."""
    from treadle_shapes.expr import Range, evaluate

    values = draw(points())
    known = {}
    for s in INDICES:
        kind = draw(st.sampled_from(["none", "constant", "symbolic", "point"]))
        if kind == "constant":
            low = draw(st.integers(0, 5))
            known[s] = Range(low, low + draw(st.integers(0, 30)))
        elif kind == "symbolic":
            extent = draw(st.sampled_from([SIZES[0], SIZES[1], SIZES[0] * 4, SIZES[0] * SIZES[1]]))
            known[s] = Range(0, extent - 1)
        elif kind == "point":
            known[s] = Range(values[s], values[s])
        if s in known:
            values[s] = draw(within(evaluate(known[s].lower, values), evaluate(known[s].upper, values)))
    return known, values


@st.composite
def view_indices(draw):
    """(index expression, divisor, ranges, values): a flattened index whose extents are right, or off by one."""
    from treadle_shapes.expr import Range, evaluate

    n, m = SIZES
    strides = draw(
        st.sampled_from([[1, n, n * m], [1, 4, 8], [1, 4, 4 * n], [1, n, 4 * n], [1, n + 1, (n + 1) * 2], [2, 8, 24]])
    )
    values = draw(points())
    known, index = {}, draw(st.sampled_from([0, 0, 1, 3]))
    for s, stride, above in zip(INDICES, strides, [*strides[1:], strides[-1] * 3], strict=True):
        extent = above // stride + draw(st.sampled_from([-1, 0, 0, 0, 1]))
        if draw(st.integers(0, 3)):
            upper = extent - 1 if evaluate(extent, values) > 0 else 0
            known[s] = Range(0, upper)
            values[s] = draw(within(0, max(0, evaluate(upper, values))))
        index = index + s * stride * draw(st.sampled_from([1, 1, 1, -1]))
    divisor = draw(st.sampled_from([*strides[1:], strides[-1] * 2, strides[1] * 2]))
    return index, divisor, known, values


@st.composite
def tight_conditions(draw, values):
    """A linear or bilinear condition that holds at the point, with no or little slack."""
    symbols = [*SYMBOLS, SIZES[0] * INDICES[0], ANY * INDICES[1]]
    form = 0
    for term in draw(st.lists(st.sampled_from(symbols), min_size=1, max_size=3, unique=True)):
        form = form + term * draw(st.sampled_from([-3, -2, -1, 1, 1, 2, 3]))
    from treadle_shapes.expr import evaluate

    slack = draw(st.sampled_from([0, 0, 0, 1, 2, 7]))
    kind = draw(st.sampled_from(["le", "le", "le", "eq", "ne"]))
    value = evaluate(form, values)
    if kind == "le":
        return Le(form, value + slack)
    return Eq(form, value) if kind == "eq" else Ne(form, value + slack + 1)
