"""Printed text means the expression: C++ through the compiler, Triton through Python stand-ins, Python through eval."""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from strategies_shapes import ANY, EXAMPLES, SYMBOLS, conditions, expressions, points

from treadle_shapes.expr import CPP_HELPERS, Range, evaluate, symbol, to_cpp, to_python, to_triton, where
from treadle_shapes.nodes import BoolExpr

i, j, n = symbol("i"), symbol("j"), symbol("n", 1)


class Tl:
    """What the printed Triton text uses of triton.language, on Python ints."""

    where = staticmethod(lambda c, a, b: a if c else b)
    minimum = staticmethod(min)
    maximum = staticmethod(max)


def triton_scope(values):
    def division(a, b):
        assert b != 0
        return a // b

    return {
        "tl": Tl,
        "treadle_floordiv": division,
        "treadle_mod": lambda a, b: a % b,
        "treadle_pow": pow,
        **{s.name: v for s, v in values.items()},
    }


@settings(max_examples=EXAMPLES, deadline=None)
@given(expressions, points())
def test_triton_text_means_the_expression(e, values):
    assert eval(to_triton(e), triton_scope(values)) == evaluate(e, values)


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
            if abs(value) < 2**62:
                assert function(*[values[s] for s in SYMBOLS]) == int(value), to_cpp(e)
            values = {s: rng.randint(s.lower or 0, 30) for s in SYMBOLS}
    assert len(cases) > 100 and any(isinstance(e, BoolExpr) for e, _ in cases)
