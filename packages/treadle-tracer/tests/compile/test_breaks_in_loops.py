"""Breaks in loops: the pieces of a loop are compiled a constant number of times, however many turns it has."""

from __future__ import annotations

import math

import pytest
import torch
from compile_runs import compare, compiled, t

stop = getattr(math, "hypot")  # noqa: B009  unknown to the tracer


def tensors(count):
    return lambda: [torch.full((2,), float(i)) for i in range(count)]


def appends(x, xs):
    out = []
    for y in xs:
        x = torch.relu(x) + y
        stop(1)
        out.append(x * 2)
    return out


def extends(x, xs):
    out = [x]
    for y in xs:
        out += [x, y]
        stop(1)
        out.extend((x + y,))
    return out


def grows_a_tuple(x, xs):
    states = ()
    for y in xs:
        x = x + y
        states += (x,)
        stop(1)
        states = states + (x * 2,)
    return states


def appends_to_an_argument(x, xs):
    for y in list(xs):
        stop(1)
        xs.append(x + y)
    return len(xs)


def comprehension(x, xs):
    return [(x * y, stop(1), x + y)[2] for y in xs]


def reads_what_it_has_appended(x, xs):
    out = []
    for y in xs:
        stop(1)
        out.append(x + y)
        x = out[-1] * len(out)
    return x, out


@pytest.mark.parametrize(
    "program", [appends, extends, grows_a_tuple, appends_to_an_argument, comprehension, reads_what_it_has_appended]
)
def test_accumulators(program):
    compare(program, t(2), tensors(5))


@pytest.mark.parametrize("program", [appends, extends, grows_a_tuple, appends_to_an_argument, comprehension])
def test_accumulators_do_not_recompile(program):
    fast, recorder = compiled(program)
    fast(torch.ones(2), tensors(3)())
    entries = len(recorder.entries)
    fast(torch.ones(2), tensors(20)())
    assert recorder.skips == []
    assert len(recorder.entries) <= entries + 1
