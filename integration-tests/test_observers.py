"""Programs that are traced, profiled or monitored, as by debuggers, coverage and cProfile: compiling and calls are right, and nothing is
compiled again because of them."""

from __future__ import annotations

import cProfile
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import pytest
import torch

import treadle

TOOL = 3
OF_CODE = ("PY_START", "PY_RETURN", "PY_RESUME", "PY_YIELD", "LINE", "CALL", "BRANCH", "JUMP", "INSTRUCTION")
OF_ALL_CODE = ("RAISE", "PY_UNWIND", "PY_THROW", "EXCEPTION_HANDLED")


def helper(x):
    return torch.sin(x) + 1


def program(x):
    y = helper(x)
    os.getpid()  # breaks the graph
    if y.sum() > 100:
        return y
    try:
        raise ValueError(2)
    except ValueError as error:
        return y * error.args[0]


@contextmanager
def _traced(events: list[Any]) -> Iterator[None]:
    def trace(frame: Any, event: str, arg: Any) -> Any:
        events.append(event)
        frame.f_trace_opcodes = True
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def _profiled(events: list[Any]) -> Iterator[None]:
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, arg: events.append(event))
    try:
        yield
    finally:
        sys.setprofile(before)


@contextmanager
def _c_profiled(events: list[Any]) -> Iterator[None]:
    profile = cProfile.Profile()
    profile.enable()
    try:
        yield
    finally:
        profile.disable()
        events += profile.getstats()


@contextmanager
def _monitored(events: list[Any], *, codes: tuple[CodeType, ...] = (), disable: bool = False) -> Iterator[None]:
    """With sys.monitoring, all that can be asked for: of these code objects alone if some are named, once in each place if `disable`."""
    monitoring = sys.monitoring  # type: ignore[attr-defined]

    def callback(*what: Any) -> Any:
        events.append(what)
        return monitoring.DISABLE if disable else None

    def told(*what: Any) -> None:
        events.append(what)

    monitoring.use_tool_id(TOOL, "treadle's tests")
    known = monitoring.events
    for names, called in ((OF_CODE, callback), (OF_ALL_CODE, told)):
        for name in names:
            monitoring.register_callback(TOOL, getattr(known, name), called)
    wanted = sum(getattr(known, name) for name in OF_CODE)
    for code in codes:
        monitoring.set_local_events(TOOL, code, wanted)
    if not codes:
        monitoring.set_events(TOOL, wanted | sum(getattr(known, name) for name in OF_ALL_CODE))
    try:
        yield
    finally:
        monitoring.set_events(TOOL, 0)
        for code in codes:
            monitoring.set_local_events(TOOL, code, 0)
        for name in (*OF_CODE, *OF_ALL_CODE):
            monitoring.register_callback(TOOL, getattr(known, name), None)
        monitoring.free_tool_id(TOOL)
        monitoring.restart_events()


OBSERVERS: dict[str, Callable[[list[Any]], Any]] = {
    "settrace": _traced,
    "setprofile": _profiled,
    "cProfile": _c_profiled,
}
if sys.version_info >= (3, 12):
    CODES = (program.__code__, helper.__code__)
    OBSERVERS |= {
        "monitoring": _monitored,
        "monitoring of the program alone": lambda events: _monitored(events, codes=CODES),
        "monitoring of each place once": lambda events: _monitored(events, disable=True),
    }


@pytest.mark.parametrize("when", ["compile", "calls"])
@pytest.mark.parametrize("observer", OBSERVERS)
def test_observed_programs(observer, when):
    x, events = torch.ones(3), []
    want = program(x)
    compiled = treadle.compile(program, backend="eager")
    if when == "calls":
        torch.testing.assert_close(compiled(x), want)
    with OBSERVERS[observer](events):
        results = [compiled(x) for _ in range(3)]
    graphs = treadle.stats().graphs
    results.append(compiled(x))
    for result in results:
        torch.testing.assert_close(result, want)
    assert treadle.stats().graphs == graphs
    assert events or observer == "monitoring of the program alone"  # compiled code is other code
