"""Intervals of polynomials beyond interval arithmetic: corners, quotients, symbolic ends, residues."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies_shapes import EXAMPLES

from treadle_shapes import Range, evaluate, symbol
from treadle_shapes.bounds import (
    OWN,
    KnownRanges,
    bounds,
    join_residues,
    least_at_corner,
    linear_coefficients,
    primitive,
    residue_of,
    split_linear,
)
from treadle_shapes.expr import where
from treadle_shapes.nodes import Fn, as_terms

a, b, i, n = symbol("a", 1), symbol("b", 1), symbol("i"), symbol("n", 1)


@given(st.integers(1, 30), st.integers(0, 29), st.integers(1, 30), st.integers(0, 29))
@settings(max_examples=EXAMPLES)
def test_joined_residues_are_those_of_both(p, r, q, s):
    r, s = r % p, s % q
    both = [x for x in range(p * q) if x % p == r and x % q == s]
    joined = join_residues((p, r), (q, s))
    assert (joined is None) == (not both)
    if joined is not None:
        assert [x for x in range(p * q) if x % joined[0] == joined[1] % joined[0]] == both


@given(st.integers(-6, 6).filter(bool), st.integers(-9, 9), st.integers(2, 12), st.integers(-20, 20))
@settings(max_examples=EXAMPLES)
def test_a_residue_is_that_of_every_solution(g, c, modulus, value):
    x = symbol("x", None)
    node = (g * x + c) % modulus
    if not isinstance(node, Fn):  # the modulus and a factor of the number have been divided out
        return
    found = residue_of(node, evaluate(node, {x: value}))
    if found is not None:
        form, (m, r) = found
        assert evaluate(form, {x: value}) % m == r


def test_the_primitive_part():
    g, x, c = primitive(-4 * a + 6 * b + 5)
    assert g * x + c is -4 * a + 6 * b + 5 and abs(g) == 2


@pytest.mark.parametrize("p", [a * b - a, a * b + 1 - b, 2 * a * a - a, a * b - a - b, a * a * b - a * b])
def test_a_corner_is_the_least_value(p):
    least = least_at_corner(*as_terms(p), OWN)
    values = [evaluate(p, {a: x, b: y}) for x, y in itertools.product(range(1, 8), repeat=2)]
    assert least == min(values)


def test_corners_that_are_not_the_least_value_are_refused():
    assert least_at_corner(*as_terms(a - a * b), OWN) is None
    assert least_at_corner(*as_terms(a * a - 4 * a), OWN) is None
    assert least_at_corner(*as_terms(a + b), OWN) is None  # the interval of a plain sum says as much


def test_symbolic_ends_and_quotients():
    inside = {i: Range(0, n - 1)}
    assert bounds(i - n, inside).upper == -1
    assert bounds(a - 4 * (a // 4)) == Range(0, 3)
    assert KnownRanges({i: Range(0, i)}).interval(i)[0] == 0  # a range that mentions its own symbol ends


def test_the_chosen_side_of_a_selection():
    j = symbol("j", 0, 15)
    assert bounds(where(j < 8, j, j - 8)) == Range(0, 7)


def test_linear_parts():
    assert split_linear(3 * i * n + a, i) == (3 * n, a)
    assert split_linear(i * i + a, i) is None and split_linear(i % 2 + i, i) is None
    assert split_linear(a, i) == (0, a)
    assert linear_coefficients(2 * i + n * a + 1, [i, a]) == ({i: 2, a: n}, 1)
    assert linear_coefficients(i * a, [i, a]) is None
