"""`finally` blocks around graph calls that write to outside tensors: those that restore state are no obstacle, others are."""

from __future__ import annotations

import dis
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from compile_runs import compiled

from treadle_tracer.bytecode import read
from treadle_tracer.trace.program import Program
from treadle_tracer.trace.table import HANDLERS


def program_of(function: Any) -> Program:
    return Program(read(function.__code__), HANDLERS)


def handler_of(function: Any) -> int:
    """The first instruction of the outermost handler."""
    return min(entry.target for entry in program_of(function).model.exceptions)


def plain_finally(f):
    try:
        f()
    finally:
        f.n = 1


def finally_with_branch(f):
    try:
        f()
    finally:
        if f.n:
            f.n = 1


def finally_that_returns(f):
    try:
        f()
    finally:
        return 1  # noqa: B012


def finally_with_loop(f):
    try:
        f()
    finally:
        for _ in f.items:
            f()


def catches(f):
    try:
        f()
    except ValueError:
        return 1


def context(f):
    with f:
        f()


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (plain_finally, True),
        (finally_with_branch, True),
        (finally_that_returns, False),
        (finally_with_loop, True),
        (catches, False),
        (context, False),
    ],
)
def test_which_handlers_only_raise_again(function, expected):
    assert program_of(function).raises_again(handler_of(function)) is expected, dis.dis(function)


# ---- whole calls


def restored() -> tuple[Callable[..., Any], Any]:
    state = SimpleNamespace(flag=False, calls=0)

    def inner(x):
        state.flag = True
        try:
            x.add_(1)
        finally:
            state.flag = False
        return x * 2

    return lambda x: inner(x), state


def counted() -> tuple[Callable[..., Any], Any]:
    state = SimpleNamespace(flag=False, calls=0)

    def inner(x):
        try:
            x.add_(1)
        finally:
            state.calls += 1
        return x * 2

    return lambda x: inner(x), state


def collected() -> tuple[Callable[..., Any], Any]:
    state = SimpleNamespace(flag=False, calls=[])

    def inner(x):
        try:
            x.add_(1)
        finally:
            state.calls.append(len(state.calls))
        return x * 2

    return lambda x: inner(x), state


@pytest.mark.parametrize(("make", "is_captured"), [(restored, True), (counted, False), (collected, False)])
def test_writes_of_a_graph_under_finally(make, is_captured):
    eager, expected = make()
    function, state = make()
    run, recorder = compiled(function)
    x, y = torch.zeros(3), torch.zeros(3)
    for _ in range(4):
        assert torch.equal(run(x), eager(y)) and torch.equal(x, y)
        assert state == expected
    assert ("write-under-handler" not in recorder.codes()) == is_captured
