"""Printed text means the expression: C++ through the compiler, Triton through Python stand-ins, Python through eval."""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from strategies_shapes import ANY, EXAMPLES, SYMBOLS, conditions, expressions, points

from treadle_shapes.errors import SizeOverflowError
from treadle_shapes.expr import (
    CPP_HELPERS,
    TRITON_HELPERS,
    Le,
    Range,
    evaluate,
    symbol,
    to_cpp,
    to_python,
    to_triton,
    where,
)
from treadle_shapes.nodes import BoolExpr

i, j, n = symbol("i"), symbol("j"), symbol("n", 1)


class Tl:
    """What the printed Triton text uses of triton.language, on Python ints."""

    where = staticmethod(lambda c, a, b: a if c else b)
    minimum = staticmethod(min)
    maximum = staticmethod(max)

    static_range = staticmethod(range)


class Tensor64(int):
    """An int whose // and % round towards zero and whose shifts take counts below 64, as those of Triton's int64 tensors."""

    def __floordiv__(self, other):
        q = abs(int(self)) // abs(int(other))
        return Tensor64(q if (self < 0) == (other < 0) else -q)

    def __mod__(self, other):
        return Tensor64(int(self) - int(other) * int(self // other))

    def __rfloordiv__(self, other):
        return Tensor64(other) // self

    def __rmod__(self, other):
        return Tensor64(other) % self

    def __lshift__(self, other):
        assert 0 <= other < 64
        return Tensor64(int(self) << int(other))

    def __rshift__(self, other):
        assert 0 <= other < 64
        return Tensor64(int(self) >> int(other))

    def __rlshift__(self, other):
        return Tensor64(other) << self

    def __rrshift__(self, other):
        return Tensor64(other) >> self


for name in ("add", "sub", "mul", "and", "or", "xor"):
    for side in ("", "r"):
        plain = getattr(int, f"__{side}{name}__")
        setattr(Tensor64, f"__{side}{name}__", lambda a, b, plain=plain: Tensor64(plain(int(a), int(b))))
Tensor64.__neg__ = lambda a: Tensor64(-int(a))  # type: ignore[method-assign]


def triton_scope(values):
    scope = {"tl": Tl, "triton": SimpleNamespace(jit=lambda f: f)}
    exec(TRITON_HELPERS, scope)
    return {**scope, **{s.name: Tensor64(v) for s, v in values.items()}}


#: shifts and powers with counts that are symbols; within 64 bits at the values below
COUNTED = [ANY << j, ANY >> j, 1 << j, -64 >> j, ANY**i, (ANY + 1) ** j, (n - 5) ** (i + j), (ANY >> i) % 5 << j]
COUNTED_VALUES = [
    {ANY: z, i: a, j: b, n: c}
    for z, a, b, c in [(0, 0, 0, 1), (-3, 2, 5, 9), (1, 40, 3, 4), (-1, 9, 61, 6), (7, 3, 2, 5), (2, 20, 30, 6)]
]
#: counts beyond the width of the type, where the value still fits
LONG = [(ANY >> j, -5, 64, -1), (ANY >> j, 5, 200, 0), (ANY << j, 0, 64, 0), (ANY**j, 1, 10**15, 1), (ANY**j, -1, 10**15 + 1, -1),
        (ANY**j, 0, 64, 0), (ANY**j, -1, 128, 1), (ANY**j, 5, 0, 1)]  # fmt: skip


def fits(value):
    return -(2**63) <= value < 2**63


@pytest.mark.parametrize("e", COUNTED, ids=str)
def test_triton_counts(e):
    for values in COUNTED_VALUES:
        want = evaluate(e, values)
        if fits(want):
            assert eval(to_triton(e), triton_scope(values)) == want, values


def test_triton_counts_beyond_the_width():
    for e, base, count, want in LONG:
        assert eval(to_triton(e), triton_scope({ANY: base, j: count})) == want


def test_constants_beyond_64_bits_are_refused():
    for write in (to_cpp, to_triton):
        for e in (i + 2**63, i * 2**64, ANY >> 70, i <= 2**63):
            with pytest.raises(SizeOverflowError, match="64 bits"):
                write(e)
    assert to_python(i + 2**64) == f"i + {2**64}"
    assert eval(to_triton(ANY - 2**63), {"z": 5}) == 5 - 2**63


@settings(max_examples=EXAMPLES, deadline=None)
@given(expressions, points())
def test_triton_text_means_the_expression(e, values):
    assert eval(to_triton(e), triton_scope(values)) == evaluate(e, values)


def test_plain_shifts_only_where_the_count_is_known_to_fit():
    assert to_cpp(i >> j, {j: Range(0, 63)}) == "(i >> j)"
    assert to_cpp(i << j, {j: Range(0, 62)}) == "(i << j)"
    assert to_cpp(ANY << j, {j: Range(0, 62)}) == "treadle_shl(z, j)"
    assert to_cpp(i >> j) == "treadle_shr(i, j)"


def test_plain_division_only_where_nothing_is_negative():
    assert to_cpp(i // 4 + j % n) == "i/4 + j % n"
    assert to_cpp(ANY // 4) == "treadle_floordiv(z, 4)"
    assert to_cpp(ANY % n) == "treadle_mod(z, n)"
    assert to_cpp(ANY // 4, {ANY: Range(0, 9)}) == "z/4"
    assert to_triton(i // 4) == "i // 4"


def test_precedence():
    assert to_python((i // 4) * 3) == "3*(i//4)"
    assert to_cpp(i * (j // 4)) == "i*(j/4)"
    assert to_cpp((i + j) // 4 % 3) == "(i + j)/4 % 3"
    assert to_cpp(where(i < j, i, 0)) == "(i < j ? i : 0)"
    assert to_cpp((i < j) & (j < n)) in ("i < j && j < n", "j < n && i < j")


@pytest.mark.parametrize("part", [i // 3, -i % 4, i // 3 % 5])
def test_powers_of_divisions(part):
    """Every factor but the first needs its parentheses: (i//3)**2 is not i//3*i//3."""
    for e in (part * part, part * part * part, 2 * part * part + part, n * part * part, part * part // 7):
        for value in (5, 6, 7, 11):
            want = evaluate(e, {i: value, n: 3})
            assert eval(to_python(e), {"i": value, "n": 3}) == want
            assert eval(to_triton(e), triton_scope({i: value, n: 3})) == want
    k = symbol("k", 1)
    assert to_cpp((k // 3) * (k // 3), {k: Range(1, 9)}) == "k/3*(k/3)"


def test_large_constants_are_64_bit():
    assert to_cpp(i + 2**40) == f"i + {2**40}LL"
    assert to_cpp(-(2**63)) == f"({-(2**63) + 1}LL - 1)"


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_cpp_text_means_the_expression(tmp_path):
    rng = random.Random(0)
    cases = []

    @settings(max_examples=150, deadline=None, database=None, derandomize=True)
    @given(expressions, conditions, points())
    def collect(e, c, values):
        cases.extend((x, values) for x in (e, c) if not isinstance(x, (bool, int)))

    collect()
    cases += [(e, {**dict.fromkeys(SYMBOLS, 1), **values}) for e in COUNTED for values in COUNTED_VALUES]
    cases += [(ANY - 2**63, dict.fromkeys(SYMBOLS, 3)), (Le(ANY, -(2**63) + 1), dict.fromkeys(SYMBOLS, 3))]
    names = [s.name for s in SYMBOLS]
    arguments = ", ".join(f"int64_t {name}" for name in names)
    functions = [
        f'extern "C" int64_t f{k}({arguments}) {{ return {to_cpp(e)}; }}' for k, (e, _values) in enumerate(cases)
    ]
    source = tmp_path / "expressions.cpp"
    source.write_text("#include <algorithm>\n#include <cstdint>\n" + CPP_HELPERS + "\n".join(functions))
    library = tmp_path / "expressions.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    compiled = ctypes.CDLL(str(library))
    for k, (e, values) in enumerate(cases):
        function = compiled[f"f{k}"]
        function.restype = ctypes.c_int64
        function.argtypes = [ctypes.c_int64] * len(names)
        for _ in range(4):
            value = evaluate(e, values)
            if fits(value):
                assert function(*[values[s] for s in SYMBOLS]) == int(value), to_cpp(e)
            values = {s: rng.randint(s.lower or 0, 30) for s in SYMBOLS}
    assert len(cases) > 100 and any(isinstance(e, BoolExpr) for e, _ in cases)
