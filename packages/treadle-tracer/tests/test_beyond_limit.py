"""Beyond the limit of recompiles, entries stay as long as they serve calls."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled

import treadle_frame
from treadle_tracer.beyond_limit import _CALLS


def scaled(x, factor):
    for _ in range(20):
        x = torch.sin(x) * factor.imag
    return x


def entries_after(factors, **options):
    """How many entries the function has after calls with these factors, each as in eager."""
    fn, recorder = compiled(scaled, recompile_limit=3, **{"leave_unprofitable": True, **options})
    x = torch.ones(4)
    with pytest.warns(RuntimeWarning, match="limit of 3 recompiles"):
        for factor in factors:
            torch.testing.assert_close(fn(x, factor), scaled(x, factor))
    return len(treadle_frame.entries(scaled.__code__)), len(recorder.graphs)


def factors_of(count):
    """Complex numbers: a trace has each of them as a constant."""
    return [complex(0, 1 + k / 8) for k in range(count)]


def test_entries_that_serve_no_call_are_dropped():
    assert entries_after(factors_of(_CALLS + 8)) == (0, 3)


def test_they_stay_for_some_calls():
    assert entries_after(factors_of(_CALLS)) == (3, 3)


def test_entries_that_serve_calls_stay():
    """The first comes again and again, the second and the third never."""
    factors = factors_of(3)
    for factor in factors_of(_CALLS + 8)[3:]:
        factors += [factor, complex(0, 1)]
    assert entries_after(factors) == (1, 3)


def test_a_cycle_that_is_longer_than_the_limit_keeps_what_it_has():
    assert entries_after(factors_of(4) * (_CALLS + 4)) == (3, 3)


def test_rare_service_does_not_pay_for_the_guards():

    def little(x, factor):
        return x * factor.imag + 1

    fn, _ = compiled(little, recompile_limit=3, leave_unprofitable=True)
    x = torch.ones(4)
    with pytest.warns(RuntimeWarning, match="limit of 3 recompiles"):
        for factor in [*factors_of(3), *factors_of(20)[3:], complex(0, 1), *factors_of(60)[20:]]:
            torch.testing.assert_close(fn(x, factor), little(x, factor))
    assert not treadle_frame.entries(little.__code__)


def test_everything_stays_where_nothing_is_left_to_python():
    assert entries_after(factors_of(_CALLS + 8), leave_unprofitable=False) == (3, 3)
