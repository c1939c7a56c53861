"""Breaks in `except` and `finally` blocks: what is being handled stays so, in the instruction and in the continuation."""

from __future__ import annotations

import math
import sys
import traceback

import pytest
import torch
from compile_runs import compare, compiled, t

stop = getattr(math, "hypot")  # noqa: B009  unknown to the tracer
seen = []


def note():
    """What is being handled, as an opaque callee sees it."""
    error = sys.exc_info()[1]
    lines = [] if error is None else [frame.line for frame in traceback.extract_tb(error.__traceback__)]
    seen.append((type(error).__name__, str(error), lines))
    stop(1)


note._torchdynamo_disable = True


def in_except(x):
    try:
        x = x + 1
        raise ValueError("a")
    except ValueError as error:
        x = x * 2
        note()
        x = x - len(str(error))
    note()
    return x


def in_finally(x):
    try:
        x = x + 1
        raise KeyError("a")
    except KeyError:
        x = x * 2
        note()
    finally:
        note()
        x = x - 1
    return x


def in_finally_of_a_raise(x):
    try:
        try:
            x = x + 1
            raise KeyError("a")
        finally:
            x = x * 2
            note()
            x = x - 1
    except KeyError as error:
        note()
        return x * 3, error.args


def nested_handlers(x):
    try:
        raise KeyError("a")
    except KeyError:
        x = x + 1
        try:
            raise IndexError("b")
        except IndexError:
            note()
            x = x * 2
            note()
        note()
        x = x + 3
    note()
    return x


def raises_in_handler(x):
    try:
        try:
            raise KeyError("a")
        except KeyError:
            x = x * 2
            note()
            raise IndexError("b")
    except IndexError as error:
        note()
        return x, type(error.__context__)


def raises_again(x):
    try:
        try:
            raise KeyError("a")
        except KeyError:
            note()
            x = x * 2
            raise
    except KeyError:
        return x + 1


def leaves_by_return(x):
    for _ in range(3):
        try:
            raise KeyError("a")
        except KeyError:
            x = x + 1
            note()
            if x.dim() == 1:
                return x * 2
    return x


def in_a_loop(x):
    for i in range(4):
        try:
            if i % 2:
                raise KeyError(i)
            x = x + 1
        except KeyError as error:
            x = x * 2
            note()
            if error.args[0] == 3:
                break
            continue
        finally:
            note()
    return x


def uncaught_in_handler(x):
    try:
        raise KeyError("a")
    except KeyError:
        x = x + 1
        note()
        raise ValueError("b")  # noqa: B904


def of_a_callee(x):
    try:
        fails(x)
    except ValueError:
        x = x * 2
        note()
        x = x + 1
    return x


def fails(x):
    y = x * 2
    raise ValueError(y.dim())


class Manager:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("in")

    def __exit__(self, kind, error, trace):
        note()
        self.log.append((kind, str(error), trace is None))
        return kind is KeyError


def opaque_exit(x):
    log = []
    with Manager(log):
        x = x + 1
        raise KeyError("a")
    with Manager(log):
        x = x * 2
    return x, log


PROGRAMS = [
    in_except,
    in_finally,
    in_finally_of_a_raise,
    nested_handlers,
    raises_in_handler,
    raises_again,
    leaves_by_return,
]
PROGRAMS += [in_a_loop, uncaught_in_handler, of_a_callee, opaque_exit]


@pytest.mark.parametrize("program", PROGRAMS)
def test_breaks_in_handlers(program):
    recorder = compare(program, t(3), calls=3, reset=seen.clear, look=lambda: seen)
    assert recorder.graphs
    assert [name for name, _ in recorder.skips if name != "note"] == []
    assert sys.exc_info() == (None, None, None)


def test_a_break_while_the_caller_handles_an_exception():
    try:
        raise OSError("outer")
    except OSError:
        compare(nested_handlers, t(3), calls=3, reset=seen.clear, look=lambda: seen)
        assert str(sys.exc_info()[1]) == "outer"


def test_both_parts_are_compiled():
    recorder = compare(in_except, t(3), reset=seen.clear, look=lambda: seen)
    targets = [node.target for gm in recorder.graphs for node in gm.graph.nodes if node.op == "call_function"]
    assert len(targets) == 3
    assert isinstance(recorder.graphs[0], torch.fx.GraphModule)


def test_what_the_caller_handles_is_not_a_constant():
    """`sys.exc_info()`, `sys.exception()` and `raise` alone, called with and without an exception in the caller."""

    def looks(x):
        error = sys.exc_info()[1]
        try:
            raise
        except (KeyError, RuntimeError) as again:
            return x + 1, type(error), type(again)

    fast, _ = compiled(looks)
    x = torch.ones(2)
    for _ in range(2):
        assert [type(fast(x)), *fast(x)[1:]] == [tuple, type(None), RuntimeError]
        try:
            raise KeyError("a")
        except KeyError:
            assert fast(x)[1:] == (KeyError, KeyError)
