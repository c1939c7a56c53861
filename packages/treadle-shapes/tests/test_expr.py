"""The normal form: what collapses, what is identical, what pickles."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest

from treadle_shapes.errors import DivisionByZeroError, MissingValueError, UsageError
from treadle_shapes.expr import (
    Eq,
    Le,
    Lt,
    Ne,
    Not,
    Range,
    bounds,
    ceildiv,
    evaluate,
    linear_coefficients,
    maximum,
    minimum,
    simplify,
    substitute,
    symbol,
    to_cpp,
    to_python,
    where,
)

n, m = symbol("n", 1), symbol("m", 1)
i, j, k = symbol("i"), symbol("j"), symbol("k")
FREE = symbol("free", None)


def test_constants_are_plain_ints():
    assert type(i - i) is int and i - i == 0
    assert (i + 3) - i == 3
    assert i * 0 == 0 and i // i == 1 and i % 1 == 0
    assert type((i * 8) % 4) is int


def test_equal_structure_is_one_object():
    assert (i + j) * 2 is 2 * j + 2 * i
    assert (i + 1) * (i - 1) is i * i - 1
    assert Le(i, 4) is Lt(i, 5) is Not(Lt(4, i))
    assert Eq(i * 2, j * 2) is Eq(j, i)
    assert symbol("i") is i and symbol("i", 1) is not i


def test_pickle_and_copy_keep_identity():
    e = where(Lt(i, j), i * n // 7, minimum(i, j % 5) * 3)
    assert pickle.loads(pickle.dumps(e)) is e
    assert copy.deepcopy(e) is e


def test_views_flatten_and_unflatten():
    known = {i: Range(0, m - 1), j: Range(0, n - 1)}
    flat = i * n + j
    assert simplify(flat // n, known) is i
    assert simplify(flat % n, known) is j
    assert simplify(flat // n * n + flat % n) is flat
    assert simplify(flat // (m * n), known) == 0
    assert simplify(flat % (m * n), known) is flat
    small = {j: Range(0, 7), k: Range(0, 7)}
    deep = i * 64 + j * 8 + k
    assert simplify(deep // 64, small) is i
    assert simplify(deep // 8 % 8, small) is j
    assert simplify(deep % 8, small) is k
    assert simplify(deep // 32, small) is i * 2 + j // 4
    assert simplify(deep % 32, small) is 8 * (j % 4) + k


def test_division_rules_without_ranges():
    assert (i // 4) // 8 is i // 32
    assert (4 * i + 3) // 4 is i
    assert (6 * i + 7) // 3 is 2 * i + 2
    assert (i % 8) % 4 is i % 4
    assert (i % 12) // 4 is (i // 4) % 3
    assert simplify(i // 4 * 4 + i % 4) is i
    assert (n * i) // (n * 3) is i // 3
    assert ((n + 1) * i) // (n + 1) is i
    assert ((n + 1) * i) % (n + 1) == 0
    assert ceildiv(i, 4) is (i + 3) // 4


def test_min_max_by_range():
    known = {i: Range(0, 7)}
    assert simplify(minimum(i, 8), known) is i
    assert simplify(maximum(i, 8), known) == 8
    assert minimum(n, n + 1) is n
    assert maximum(n - 1, 0) is n - 1
    assert minimum(i, j, i) is minimum(j, i)


def test_conditions_fold_by_range():
    assert Le(0, i) is True and Lt(i, 0) is False
    assert Eq(2 * i, 2 * j + 1) is False
    assert Ne(n, 0) is True
    assert simplify(Lt(i * n + j, m * n), {i: Range(0, m - 1), j: Range(0, n - 1)}) is True
    assert simplify(where(Lt(i, 8), j, k), {i: Range(0, 7)}) is j


def test_bounds_of_symbolic_extent():
    assert bounds(i * n + j - m * n, {i: Range(0, m - 1), j: Range(0, n - 1)}).upper == -1
    assert bounds(n * m - n).lower == 0
    # a choice by a comparison knows which side it is on
    wrapped = where(Lt(i + m, n), i + m, i + m - n)
    assert bounds(wrapped, {i: Range(0, n - 1), m: Range(0, n - 1)}).lower == 0
    assert bounds(wrapped - n, {i: Range(0, n - 1), m: Range(0, n - 1)}).upper is None
    assert bounds(where(Lt(i, 4), i, i - 4), {i: Range(0, 6)}) == Range(0, 3)
    # n - 2 <= 3 * (n // 3) <= n, with either sign, and through the end of a range
    assert bounds(3 * (n // 3) - n) == Range(-2, 0)
    assert bounds(2 * n - 6 * (n // 3)) == Range(0, 4)
    assert bounds(2 * i + 2 - n, {i: Range(0, n // 2 - 1)}).upper == 0
    assert bounds(FREE) == Range(None, None)


def test_evaluate_and_substitute():
    e = (i * n + j) // 3 - i % n
    assert evaluate(e, {i: 5, n: 4, j: 1}) == 21 // 3 - 1
    assert evaluate(substitute(e, {i: j + 1, n: 4}), {j: 2}) == (3 * 4 + 2) // 3 - 3
    assert substitute(e, {i: 5, n: 4, j: 1}) == 6
    with pytest.raises(MissingValueError, match="symbol n"):
        evaluate(e, {i: 1, j: 1})
    with pytest.raises(DivisionByZeroError):
        evaluate(i // FREE, {i: 1, FREE: 0})
    with pytest.raises(DivisionByZeroError):
        i // 0


def test_linear_coefficients():
    assert linear_coefficients(i * n + 3 * j + 4, [i, j]) == ({i: n, j: 3}, 4)
    assert linear_coefficients(i * j, [i, j]) is None
    assert linear_coefficients(i // 2, [i]) is None
    assert linear_coefficients(7, [i]) == ({}, 7)


def test_truth_is_refused():
    with pytest.raises(UsageError, match="decide"):
        bool(i < j)
    with pytest.raises(UsageError):
        bool(i)


def test_printing_is_short():
    assert to_python(8 - i) == "8 - i"
    assert to_python(i - j) == "i - j"
    assert to_cpp(i // 4 + j % n) == "i/4 + j % n"
    assert to_cpp(FREE // 4) == "treadle_floordiv(FREE, 4)".replace("FREE", "free")
    assert repr(i * 2 <= 9) == "i <= 4"


def test_threads_make_one_node():
    made: list[list] = [[] for _ in range(4)]
    start = threading.Barrier(4)

    def work(out: list) -> None:
        start.wait()
        out.extend(symbol("t") * c + symbol("u") // 7 for c in range(2, 400))

    threads = [threading.Thread(target=work, args=(out,)) for out in made]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(a is b for out in made[1:] for a, b in zip(made[0], out, strict=True))
