"""SymPy forms mean the same, and come back as the expression they were made from."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from strategies_shapes import EXAMPLES, SYMBOLS, expressions, points

from treadle_shapes.errors import UsageError
from treadle_shapes.expr import Eq, Fn, evaluate, from_sympy, minimum, symbol, to_sympy, where
from treadle_shapes.nodes import children

i, j, n = symbol("i"), symbol("j"), symbol("n", 1)


def has_bits(e):
    return (isinstance(e, Fn) and e.op.startswith("bit")) or any(
        has_bits(c) for c in children(e) if not isinstance(e, int)
    )


def bits(e):
    return not isinstance(e, int) and has_bits(e)


@settings(max_examples=EXAMPLES // 2, deadline=None)
@given(expressions, points())
def test_sympy_form_has_the_same_value(e, values):
    if bits(e):
        return
    form = to_sympy(e)
    free = {s.name: values[s] for s in SYMBOLS}
    assert int(form.subs({s: free[s.name] for s in form.free_symbols})) == evaluate(e, values)


def test_round_trip():
    for e in (i * n + 3, i // n, (i + j) % 7, minimum(i, j + 1), i * i * n - 4):
        assert from_sympy(to_sympy(e), {to_sympy(s): s for s in (i, j, n)}) is e
    assert from_sympy(to_sympy(where(i < j, i, 3)), {to_sympy(s): s for s in (i, j)}) is where(i < j, i, 3)
    assert from_sympy(to_sympy(Eq(i, j)), {to_sympy(s): s for s in (i, j)}) is Eq(i, j)


def test_what_has_no_form_is_refused():
    import sympy

    with pytest.raises(UsageError, match="no integer form"):
        from_sympy(sympy.sin(sympy.Symbol("x")))
    with pytest.raises(UsageError, match="no value where none"):
        from_sympy(sympy.Piecewise((sympy.Symbol("x"), sympy.Symbol("x") > 0)))
    with pytest.raises(UsageError, match="expected a SymPy form"):
        from_sympy("x")
    assert from_sympy(5) == 5
    with pytest.raises(UsageError, match="no SymPy form"):
        from treadle_shapes.expr import bit_and

        to_sympy(bit_and(i, j))


def test_import_leaves_sympy_and_torch_out():
    code = "import sys, treadle_shapes; print([m for m in ('sympy', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
