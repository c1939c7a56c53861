"""Expressions of a number that changes from call to call give Python's results, types and exceptions, at the place where Python raises."""

from __future__ import annotations

import functools
import itertools
import math
import operator
import types

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
OF_MATH = (
    "math.pow(0.9, n)", "1.0 - math.pow(0.9, n)", "math.pow(n, 2)", "math.pow(n, 0.5)", "math.pow(-2, n)", "math.pow(0, n)",
    "math.pow(n, n)", "math.pow(1e300, n)", "math.hypot(n, 2)", "math.fmod(n, 3)", "math.fmod(3, n)", "math.atan2(n, 2)",
    "math.copysign(n, -1)", "math.copysign(2, n)", "math.log(n + 1, 2)", "math.log(3, n)", "math.log10(n + 1)", "math.log2(n)",
    "math.log1p(n)", "math.fabs(1 - n)", "math.degrees(n)", "math.radians(n)", "math.lgamma(n)", "math.gamma(n)", "math.acosh(n)",
    "math.asin(n)", "math.remainder(n, 3)", "math.ldexp(0.5, n)", "math.modf(n)", "math.frexp(n)", "math.isclose(n, 3)",
    "math.nextafter(n, 9)",
    "math.ceil(n)", "math.trunc(n)", "math.dist([n], [1])", "math.fsum([n, 0.1])", "math.sqrt(1 - math.pow(0.99, n))", "math.ulp(n)",
    "math.pow(n)", "math.pow(n, 2, 3)", "math.pow(n, 'a')", "math.hypot(n)", "math.sqrt(n, 2)",
)  # fmt: skip
MATH_OF_INTEGERS = (
    "math.isqrt(n)", "math.gcd(n)", "math.lcm(n, 4)", "math.perm(7, n)", "math.perm(n)", "math.comb(n, 2)", "math.gcd(n, 4, n)",
)  # fmt: skip
OF_NUMBERS += OF_MATH
OF_INTEGERS += MATH_OF_INTEGERS
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


@pytest.mark.parametrize(
    "comparison", ("n > 3", "n >= 3", "n < m", "n <= m", "3 < n", "m >= n", "n == 3", "not n > 3", "n > 2.5")
)
def test_what_a_comparison_adds_to_a_count(comparison):
    def make():
        scope = {"box": types.SimpleNamespace(count=0)}
        exec(
            f"def f(x, n, m):\n    box.count += {comparison}\n    return x * box.count, type(box.count), box.count + 1",
            scope,
        )
        return scope["f"]

    run, expected = compiled(make())[0], make()
    for n, m in itertools.product((3, 5, 2, 0, -2), (3, 2, -3)):
        x = torch.ones(3)
        found, wanted = run(x, n, m), expected(x, n, m)
        assert found[1:] == wanted[1:]
        torch.testing.assert_close(found[0], wanted[0])


def test_a_count_of_comparisons_is_no_choice_of_paths():
    box = types.SimpleNamespace(count=0)

    def f(x, n):
        box.count += n > 3
        return x * box.count

    run, said = compiled(f)
    for n in range(8):
        torch.testing.assert_close(run(torch.ones(3), n), torch.full((3,), float(max(0, n - 3))))
    assert len(said.graphs) == 2


@pytest.mark.parametrize(("dynamic", "graphs"), [(None, 2), (False, 6)])
@pytest.mark.parametrize("place", ("box.best", "items[0]", "table['best']"))
def test_a_number_overwritten_by_one_that_varies_varies(place, dynamic, graphs):
    scope = {"box": types.SimpleNamespace(best=0), "items": [0], "table": {"best": 0}}
    exec(f"def f(x, n):\n    {place} = max({place}, n)\n    return x * {place}", scope)
    run, said = compiled(scope["f"], dynamic=dynamic)
    for n in (0, 2, 1, 3, 5, 4):
        best = max(2 * (n > 0), n) if n < 3 else max(3 + 2 * (n > 3), n)
        torch.testing.assert_close(run(torch.ones(3), n), torch.full((3,), float(best)))
    assert len(said.graphs) == graphs


def test_a_number_that_no_symbol_can_stand_for_leaves_the_others_alone():
    """What is overwritten is used in a way that breaks the graph where it is a symbol; `n` stays one."""
    box = types.SimpleNamespace(last=1)

    def f(x, n):
        y = x * n + ord(chr(64 + box.last * 0))
        box.last = n
        return y

    run, said = compiled(f)
    for n in range(1, 9):
        torch.testing.assert_close(run(torch.ones(3), n), torch.full((3,), float(n + 64)))
    assert not said.breaks and len(said.graphs) <= 4


@pytest.mark.parametrize(
    "expression",
    (
        "math.pow(0.9, n)", "1.0 - math.pow(0.9, n)", "math.pow(n, 0.5)", "math.hypot(n, 2)", "math.log10(n + 1)", "math.log1p(n)",
        "math.log(n + 1, 2)", "math.copysign(n, -1)", "math.gcd(n, 4) * 0.5", "math.comb(n, 2)", "math.lgamma(n)", "math.remainder(n, 3)",
        "math.sqrt(1 - math.pow(0.99, n)) / (1 - math.pow(0.9, n))", "math.isqrt(n)", "math.ldexp(0.5, n)", "math.perm(n, 2)",
    ),
)  # fmt: skip
def test_functions_of_a_step_counter_are_two_graphs_at_most(expression):
    box = types.SimpleNamespace(step=2)
    scope = {"math": math, "box": box}
    exec(f"def f(x):\n    box.step += 1\n    n = box.step\n    return x * ({expression})", scope)
    run, said = compiled(scope["f"])
    for step in range(2, 14):
        box.step = step
        found = run(torch.ones(2))
        box.step = step
        torch.testing.assert_close(found, scope["f"](torch.ones(2)))
        assert box.step == step + 1
    assert len(said.graphs) <= 2
    assert not said.breaks


class Ring:
    """A buffer of `size` rows, of which the first `filled` are."""

    def __init__(self, size):
        self.rows = torch.arange(float(size))
        self.filled = 2

    def __len__(self):
        return self.filled


@pytest.mark.parametrize(
    "function",
    (
        lambda ring: ring.rows[: len(ring)] * 2,
        lambda ring: ring.rows[: ring.__len__()].sum() / len(ring),
        lambda ring: ring.rows * len(ring) if ring else ring.rows,
        lambda ring: torch.arange(3) % len(ring),
    ),
)
def test_a_length_that_a_class_answers_changes(function):
    ring = Ring(20)
    run, said = compiled(function)
    for ring.filled in range(2, 14):
        torch.testing.assert_close(run(ring), function(ring))
    assert len(said.graphs) <= 2 and not said.breaks


@pytest.mark.parametrize("wrong", (-1, 0, 2.0, None, True, 1 << 70))
def test_a_length_that_is_refused_after_others(wrong):
    def f(ring):
        try:
            return ring.rows + len(ring)
        except Exception as error:
            return type(error), str(error)

    ring = Ring(5)
    run, _ = compiled(f)
    for ring.filled in (2, 3, 4, wrong, 5):
        found, expected = run(ring), f(ring)
        assert found == expected if isinstance(expected, tuple) else torch.equal(found, expected)


def test_a_root_that_is_complex_for_a_later_number():
    def program(x, number):
        return x * number**0.5 if number > 0 and number**0.5 > 1.2 else x - 1

    fast, _ = compiled(program)
    for number in (2.0, 1.5, 3.0, -3.0, -4.0, 5.0):
        assert torch.equal(fast(torch.ones(2), number), program(torch.ones(2), number))


def test_a_number_computed_from_a_size_may_be_one():
    run, recorder = compiled(lambda x: x * math.gcd(x.shape[0], 6), dynamic=True)
    for n in (5, 7, 8, 11, 5):
        x = torch.ones(n, 3)
        assert torch.equal(run(x), x * math.gcd(n, 6))
    assert len(recorder.graphs) == 1
