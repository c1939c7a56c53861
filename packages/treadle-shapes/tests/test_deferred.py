"""SymPy expressions that are built when somebody reads their structure."""

from __future__ import annotations

import pytest

sympy = pytest.importorskip("sympy")

from treadle_shapes.deferred import Deferred  # noqa: E402

x, y = sympy.symbols("x y", integer=True)


@pytest.fixture
def built():
    return []


@pytest.fixture
def deferred(built):
    def make():
        built.append(1)
        return x * y + 1

    return Deferred(make, frozenset({x, y}))


def test_symbols_equality_and_hash_build_nothing(deferred, built):
    assert deferred.free_symbols == {x, y} and deferred.is_integer
    assert deferred == deferred and deferred != x and len({deferred, deferred}) == 1
    assert not built


def test_structure_is_built_once(deferred, built):
    assert deferred + 1 == x * y + 2
    assert deferred.subs({x: 2, y: 3}) == 7
    assert deferred.func is sympy.Add and set(deferred.args) == {sympy.Integer(1), x * y}
    assert built == [1]


def test_arguments_are_looked_into_as_well(deferred):
    other = Deferred(lambda: x, frozenset({x}))
    assert deferred - other == x * y - x + 1
