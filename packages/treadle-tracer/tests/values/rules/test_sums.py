"""`sum` of numbers: since 3.12 it carries rounding errors of floats along, as long as it meets nothing but ints and floats."""

from __future__ import annotations

from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")

from compile_runs import compiled  # noqa: E402

ITEMS = {
    "tenths": [0.1] * 10,
    "cancelled": [1e100, 1.0, -1e100],
    "an int first": [1, 0.5, 1e16, 1, -1e16],
    "a bool first": [True, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7],
    "infinite": [float("inf"), 1.0, -1e300],
    "a large int": [0.1, 0.2, 1 << 70, 0.3, 0.4],
    "a complex": [0.1, 0.2, 0.3, 1j, 0.1, 0.2, 0.3],
    "a fraction": [1, Fraction(1, 3), 0.1, 0.2, 0.3, 0.4, 0.1],
    "ints": [1, 2, 3],
    "nothing": [],
}
STARTS = [0, 0.0, 0.1, True, 1 << 70]


def _same(a, b):
    return type(a) is type(b) and repr(a) == repr(b)


@pytest.mark.parametrize("start", STARTS, ids=repr)
@pytest.mark.parametrize("name", ITEMS)
def test_sums_of_constants(name, start):
    items = ITEMS[name]

    def program(x):
        return x + 1, sum(items, start)

    x = torch.ones(2)
    fast, _ = compiled(program)
    for _ in range(2):
        assert _same(fast(x)[1], program(x)[1])


@pytest.mark.parametrize("rest", [[], [0.2], [0.2, 0.3], [1, 0.3], [3, 4]], ids=repr)
def test_sums_of_floats_that_change(rest):
    def program(x, s):
        return x + 1, sum([s, *rest]), sum([1, s, s * 0.1, s])

    x = torch.ones(2)
    fast, _ = compiled(program)
    for s in (0.1, 0.7, 1e16, -0.3, 2.5):
        for got, want in zip(fast(x, s)[1:], program(x, s)[1:], strict=True):
            assert _same(got, want)


def test_sums_of_tensors_and_floats():
    def program(x):
        return sum([0.1, 0.2, 0.3, x, 0.1, 0.2])

    x = torch.ones(2, dtype=torch.float64)
    fast, _ = compiled(program)
    torch.testing.assert_close(fast(x), program(x), rtol=0, atol=0)
