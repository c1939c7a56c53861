"""Expressions of a number that changes from call to call give Python's results, types and exceptions, at the place where Python raises."""

from __future__ import annotations

import functools
import itertools
import math
import operator

import pytest
import torch
from compile_runs import compiled

INTEGERS = (3, 5, 7, 0, -2)
FLOATS = (2.5, 3.5, 2.0, -1.5, math.nan)
OF_NUMBERS = (
    "(-2)**n", "2**n", "n**2", "n**-1", "n**0.5", "0**n", "pow(-3, n)", "3//n", "3%n", "divmod(7, n)", "n//2", "n//-2", "-n%3", "n/0",
    "math.log(n + 1)", "math.sqrt(n)", "math.floor(n)", "math.exp(n)", "math.isnan(n)", "'%d' % n", "'%s' % n", "f'{n:d}'", "f'{n:.2f}'",
    "f'{n:>6}'", "format(n, '04')", "str(n)", "round(n)", "round(n, 1)", "n.__class__.__name__", "type(n)(2)", "n.real", "n.imag",
    "n.conjugate()", "-n", "+n", "abs(n)", "n.__round__()", "n.__trunc__()", "n.__int__()", "n.__add__('a')", "n.__eq__(3)", "int(n)",
    "float(n)", "complex(n, 1)", "hash(n)", "{n: 1}", "n in {1, 2, 3}", "n in [1, 2.5]", "(n, 1) < (3, 2)", "[n, 1].index(n)",
    "sum([n, n, 1])", "functools.reduce(operator.mul, [n, 2])", "list(itertools.accumulate([n, 1]))", "min(n, 3)", "sorted([n, 1, 5])",
    "x * n", "x ** n", "n ** x", "n - x", "x // n", "n is n", "n == 'a'",
    "vars(n)", "n.__dict__", "n.__name__", "n.__mro__", "hasattr(n, '__qualname__')", "n.__doc__[:3]", "n.mro()",
)  # fmt: skip
OF_INTEGERS = (
    "~n", "n << 2", "n >> 1", "n & 6", "n ^ 3", "n | 8", "hex(n)", "math.factorial(n)", "math.gcd(n, 6)", "math.comb(7, n)",
    "n.bit_length()", "n.numerator", "n.denominator", "list(range(n))", "[0] * n", "'abcdefgh'[:n]", "[1, 2, 3][n]", "chr(n + 60)",
    "pow(n, 2, 5)", "1 << n",
)  # fmt: skip
CASES = [(text, INTEGERS) for text in (*OF_NUMBERS, *OF_INTEGERS)] + [(text, FLOATS) for text in OF_NUMBERS]


@pytest.mark.parametrize(("expression", "numbers"), CASES, ids=[f"{text}-{numbers[0]}" for text, numbers in CASES])
def test_a_number_that_changes(expression, numbers):
    scope = {"math": math, "operator": operator, "functools": functools, "itertools": itertools, "torch": torch}
    exec(
        f"def f(x, n):\n    try: r = {expression}\n    except Exception as error: r = error\n    return x + 1, type(r), str(r)",
        scope,
    )
    run = compiled(scope["f"])[0]
    for number in numbers:
        x = torch.tensor([1.0, 2.0, 3.0])
        assert run(x, number)[1:] == scope["f"](x, number)[1:], number
