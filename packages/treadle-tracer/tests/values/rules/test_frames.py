"""`sys._getframe` and `inspect.currentframe`: what the program learns about its frames is as in eager."""

from __future__ import annotations

import functools
import inspect
import sys

import pytest
import torch
from compile_runs import compiled, item

from treadle_tracer import Unsupported


def caller(depth=1):
    frame = sys._getframe(depth)
    return frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno


def names(depth):
    frame, found = sys._getframe(), []
    for _ in range(depth):
        found.append(frame.f_code.co_name)
        frame = frame.f_back
    return found


def own_line(x):
    first = sys._getframe().f_lineno
    frame = inspect.currentframe()
    return x + 1, first, frame.f_lineno, frame.f_code.co_name, frame is inspect.currentframe()


def line_of_the_call(x):
    def inner():
        return caller(), caller(
            2,
        )

    return x * 2, inner(), caller(0), names(1)


class Owner:
    def method(self):
        return caller()

    def __call__(self):
        return caller(), self.method()


def methods(x):
    owner = Owner()
    return x * 2, owner.method(), owner.method(), owner(), functools.partial(caller)(), functools.partial(caller, 1)()


WITHIN = (own_line, line_of_the_call)


@pytest.mark.parametrize("program", WITHIN, ids=lambda f: f.__name__)
def test_frames_of_the_trace(program):
    fast, said = compiled(program, fullgraph=True)
    found, expected = fast(torch.ones(2)), program(torch.ones(2))
    assert torch.equal(found[0], expected[0]) and found[1:] == expected[1:]
    assert len(said.graphs) == 1


class Layer(torch.nn.Module):
    def forward(self, x):
        return x * 2, names(3), caller(2)


LAYER = Layer()


def through_a_module(x):
    return LAYER(x)


def in_a_generator(x):
    def each():
        yield names(2)
        yield caller(1)

    return x + 1, *each()


def behind_a_break(x):
    item(x.sum())
    return x + 1, caller(), sys._getframe().f_lineno, names(2)


def contents(x):
    y = x + 1
    return y, sorted(sys._getframe().f_locals), sys._getframe().f_globals["__name__"]


def through_a_property(x):
    class Host:
        @property
        def line(self):
            return caller()

    return x + 1, Host().line, [caller() for _ in range(2)], sorted([2, 1], key=lambda n: caller(1)[2])


def left_behind(x):
    def inner():
        return sys._getframe()

    frame = inner()
    return x + 1, frame.f_back is None, frame.f_code.co_name


OTHER = (methods, through_a_module, in_a_generator, behind_a_break, contents, through_a_property, left_behind)


@pytest.mark.parametrize("program", OTHER, ids=lambda f: f.__name__)
def test_other_frames(program):
    fast, _ = compiled(program)
    for _ in range(2):
        found, expected = fast(torch.ones(2)), program(torch.ones(2))
        assert torch.equal(found[0], expected[0]) and found[1:] == expected[1:]


def test_frames_outside_the_trace_break_the_graph():
    def f(x):
        return x + 1, caller(2)[0]

    def calls(function):
        return function(torch.ones(2))

    fast, _ = compiled(f)
    assert calls(fast)[1] == calls(f)[1] == "calls"
    fast, _ = compiled(f, fullgraph=True)
    with pytest.raises(Unsupported, match="one outside the trace"):
        calls(fast)
