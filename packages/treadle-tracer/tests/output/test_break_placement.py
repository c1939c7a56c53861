"""Where a frame is left when it cannot be rebuilt at the break itself."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from treadle_tracer import Unsupported
from treadle_tracer.bytecode import read
from treadle_tracer.output import break_placement
from treadle_tracer.output.break_placement import candidates, place_break


def nested(manager, items):
    with manager() as m:
        for item in iter(items):
            print(m, item)
    return m


MODEL = read(nested.__code__)


def index_of(opname, argval=None, after=0):
    return next(
        i
        for i, x in enumerate(MODEL.instructions)
        if i >= after and x.opname.startswith(opname) and (argval is None or x.argval == argval)
    )


def test_the_call_before_the_break_then_the_blocks_around_it_innermost_first():
    inside = index_of("LOAD_GLOBAL", "print")
    call = index_of("CALL", after=inside)
    loop, block = index_of("GET_ITER"), index_of("BEFORE_WITH")
    found = list(candidates(MODEL, call + 1))
    assert found[0] == call and [i for i in found if i in (loop, block)] == [loop, block]
    for i in found:
        assert MODEL.instructions[i].opname.startswith(("CALL", "GET_ITER", "BEFORE_WITH"))
    assert loop not in list(candidates(MODEL, block + 1)) and block not in list(candidates(MODEL, block))


def result_at(index, kind="break"):
    return SimpleNamespace(
        kind=kind, index=index, handled=None, inner=(), steps=(0,), raised=(), reason=Unsupported("output", "print")
    )


@pytest.fixture
def plans(monkeypatch):
    """FramePlan works at the indices in this list only."""
    good = []

    def plan(code, model, result):
        if result.index not in good:
            raise Unsupported("reconstruct", f"at {result.index}")
        return result

    monkeypatch.setattr(break_placement, "FramePlan", plan)
    return good


def test_the_first_candidate_that_works_is_taken(plans):
    loop, block = index_of("GET_ITER"), index_of("BEFORE_WITH")
    place = index_of("LOAD_GLOBAL", "print")
    traces = []

    def again(stop_at, reason):
        traces.append(stop_at)
        assert reason.code == "output"
        return result_at(stop_at)

    plans[:] = [loop, block]
    assert place_break(nested.__code__, MODEL, result_at(place), again).index == loop
    assert traces[-1] == loop and block not in traces


def test_the_first_reason_is_raised_when_nothing_works(plans):
    place = index_of("LOAD_GLOBAL", "print")
    with pytest.raises(Unsupported, match=f"at {place}"):
        place_break(nested.__code__, MODEL, result_at(place), lambda stop_at, reason: result_at(stop_at))


def test_a_trace_that_takes_another_way_is_no_plan(plans):
    plans[:] = [index_of("GET_ITER")]
    with pytest.raises(Unsupported, match="reconstruct"):
        place_break(
            nested.__code__, MODEL, result_at(index_of("LOAD_GLOBAL", "print")), lambda s, r: result_at(s, "return")
        )
