"""Generators of the standard library that are left in the middle, inside a handler that closing them does not run."""

from __future__ import annotations

import collections.abc

import torch
from compile_runs import compiled


class Names(collections.abc.Sequence):
    """Iterated by `Sequence.__iter__`, a generator inside `try: ... except IndexError`."""

    def __init__(self, *names):
        self.names = names

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        return self.names[index]


def test_a_sequence_that_is_not_iterated_to_its_end():
    names = Names("a", "b", "c")

    def program(x):
        for name in names:
            if name != "a":
                return x * 2
        return x

    fast, recorder = compiled(program)
    x = torch.ones(2)
    assert torch.equal(fast(x), program(x)) and (recorder.codes(), len(recorder.graphs)) == ([], 1)


def test_a_handler_that_closing_runs():
    log = []

    def items():
        try:
            yield 1
            yield 2
        except BaseException:
            log.append("closed")
            raise

    def program(x):
        for item in items():
            return x * item

    fast, _ = compiled(program)
    x = torch.ones(2)
    assert torch.equal(fast(x), x) and log == ["closed"]


def closable(log):
    try:
        try:
            yield 1
        except LookupError:
            log.append("closed")
    except ArithmeticError:
        pass


def test_the_class_that_a_handler_catches_is_guarded(monkeypatch):
    def program(x, log):
        for item in closable(log):
            return x * item

    fast, recorder = compiled(program)
    x, log = torch.ones(2), []
    fast(x, log)
    assert (recorder.codes(), len(recorder.graphs), log) == ([], 1, [])
    monkeypatch.setitem(globals(), "LookupError", GeneratorExit)
    fast(x, log)
    assert log == ["closed"]


def test_a_generator_that_stands_in_a_handler():
    def items():
        try:
            raise KeyError
        except KeyError:
            yield 2

    def program(x):
        for item in items():
            return x * item

    fast, _ = compiled(program)
    x = torch.ones(2)
    assert torch.equal(fast(x), program(x))
