"""Functions that are new objects at every call: an entry serves all of one code, unless the program asks which function it is."""

from __future__ import annotations

import functools

import pytest
import torch
from compile_runs import compiled

X = torch.ones(2)


class Holder:
    def __init__(self, function):
        self.function = function


def made(shift=0, name=None):
    def function(x, s=shift):
        return x * 2 + s

    if name is not None:
        function.__name__ = name
    return function


def decorated(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


def one(x):
    return x + 1


def two(x):
    return x + 2


KNOWN = made()

PLACES = {
    "attribute": lambda f: Holder(f),
    "list": lambda f: [f],
    "dict": lambda f: {"f": f},
    "partial": lambda f: functools.partial(f),
}
CALLS = {
    "attribute": lambda held: held.function(held.function(X)),
    "list": lambda held: held[0](X),
    "dict": lambda held: held["f"](X) + held["f"](X),
    "partial": lambda held: held(X),
}


@pytest.mark.parametrize("place", PLACES)
def test_one_compile_for_all(place):
    fast, recorder = compiled(CALLS[place])
    for _ in range(4):
        assert torch.equal(fast(PLACES[place](made(3))), CALLS[place](PLACES[place](made(3))))
    assert len(recorder.graphs) == 1


ASKS = {
    "name": (lambda h: X * len(h.function.__name__), [made(name="a"), made(name="abc"), made()]),
    "wrapped": (lambda h: h.function(X) * len(h.function.__name__), [decorated(one), decorated(two)]),
    "defaults": (lambda h: h.function(X), [made(1), made(2), made(3)]),
    "is": (lambda h: X * 2 if h.function is KNOWN else X * 3, [KNOWN, made(), KNOWN]),
    "is, new first": (lambda h: X * 2 if h.function is KNOWN else X * 3, [made(), KNOWN]),
    "key": (lambda h: X * {KNOWN: 5}.get(h.function, 6), [made(), KNOWN, made()]),
    "member": (lambda h: X * 2 if h.function in (KNOWN, one) else X * 3, [made(), KNOWN]),
}


@pytest.mark.parametrize("ask", ASKS)
def test_what_the_program_asks_of_the_function_is_guarded(ask):
    program, functions = ASKS[ask]
    fast, _ = compiled(program)
    for function in functions:
        assert torch.equal(fast(Holder(function)), program(Holder(function)))
