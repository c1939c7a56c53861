"""The soundness fuzzer finds a compiled function that is stale, and finds nothing in a fixed sample of worlds."""

from __future__ import annotations

import unittest

import pytest

import treadle
from soundness import cpython
from soundness.__main__ import differs_in_eager
from soundness.minimise import minimise
from soundness.run import Case, make_case, run_case
from soundness.world import World

CHANGED_GLOBAL = Case(
    World(("G0 = 1", "G1 = 2", "class A: pass"), ("y = x + 1", "out.append(G0)", "out.append(G1)")),
    (("call", "f(torch.ones(2), 1, 2)"), ("world", "G1 = 3"), ("world", "G0 = 5"), ("call", "f(torch.ones(2), 1, 2)")),
)


def stale(function):
    """A compiler without guards: every call returns what the first returned."""
    return _Stale(function)


class _Stale:
    def __init__(self, function):
        self.function = function
        self.results = []

    def __call__(self, *args):
        if not self.results:
            self.results.append(self.function(*args))
        return self.results[0]


def test_a_stale_result_is_found():
    found = run_case(CHANGED_GLOBAL, stale)
    assert found is not None and (found.step, found.what) == (3, "result")


def test_eager_agrees_with_itself():
    assert run_case(CHANGED_GLOBAL, lambda function: function) is None
    assert all(run_case(make_case(seed), lambda function: function) is None for seed in range(20))


def test_what_differs_without_a_compiler_is_no_failure():
    """A key whose hash has changed is found again if the search for the new hash happens to pass by."""
    by_address = Case(World(("class A: pass", "o0 = A()"), ("out.append(id(o0))",)), CHANGED_GLOBAL.steps[:1])
    assert differs_in_eager(by_address) and not differs_in_eager(CHANGED_GLOBAL)


def test_a_failure_is_minimised():
    smallest = minimise(CHANGED_GLOBAL, lambda case: run_case(case, stale) is not None)
    assert (
        len(smallest.world.lines) == 1
        and len(smallest.steps) == 3
        and smallest.world.chunks in (("G0 = 1",), ("G1 = 2",))
    )


@pytest.mark.parametrize("seed", range(0, 30, 2))
def test_a_sample_of_worlds(seed):
    def compile_function(function):
        treadle.reset()
        return treadle.compile(function, backend="eager", options={"raise_internal_errors": True})

    assert run_case(make_case(seed), compile_function) is None


class _TwoMethods(unittest.TestCase):
    calls = 0

    def test_the_second_run_differs(self):
        type(self).calls += 1
        self.assertEqual(self.calls, 1)

    def test_the_same_each_time(self):
        self.assertEqual([1, 2], sorted({2, 1}))


def test_a_method_that_ends_otherwise_when_compiled_is_found():
    assert cpython.difference(_TwoMethods("test_the_same_each_time")) is None
    assert "AssertionError" in (cpython.difference(_TwoMethods("test_the_second_run_differs")) or "")


@pytest.mark.parametrize("module", ["test_with", "test_sort"])
def test_a_sample_of_cpythons_own_tests(module):
    pytest.importorskip(f"test.{module}")
    cases = list(cpython.tests_of(module))
    assert cases and [found for case in cases if (found := cpython.difference(case)) is not None] == []
