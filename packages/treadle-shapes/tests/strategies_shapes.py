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
            values[s] = draw(st.integers(evaluate(known[s].lower, values), evaluate(known[s].upper, values)))
    return known, values
