"""What an exception has got from being raised, as compiled functions see it."""

from __future__ import annotations

import contextlib
import sys

import pytest
import torch
from compile_runs import compiled


def of_a_caught_exception(x):
    try:
        raise KeyError("k")
    except KeyError as error:
        return x, error.__traceback__ is None, bool(error.__traceback__)


def before_and_after(x):
    error = ValueError("a")
    before = error.__traceback__ is None, error.__context__ is None
    with contextlib.suppress(ValueError):
        raise error
    return x, before, error.__traceback__ is None, error.__context__ is None


def seen_by_exc_info(x):
    try:
        {}["k"]
    except KeyError as error:
        cls, found, traceback = sys.exc_info()
        return x + 1, cls is KeyError, found is error, traceback is None


def contexts(x):
    try:
        try:
            raise KeyError("a")
        except KeyError:
            raise ValueError("b")  # noqa: B904
    except ValueError as error:
        return x, type(error.__context__), error.__context__.args, error.__cause__ is None


def _fails():
    return [][1]


def context_of_a_call(x):
    try:
        try:
            {}["q"]
        except KeyError:
            _fails()
    except IndexError as error:
        return x, type(error.__context__)


def raised_once_more(x):
    error = ValueError("a")
    with contextlib.suppress(ValueError):
        raise error
    try:
        try:
            raise KeyError
        except KeyError:
            raise error  # noqa: B904
    except ValueError:
        return x, type(error.__context__)


class Manager:
    def __init__(self):
        self.seen = []

    def __enter__(self):
        return self

    def __exit__(self, cls, error, traceback):
        self.seen.append((cls is None, error is None, traceback is None))
        return True


def given_to_exit(x):
    manager = Manager()
    with manager:
        raise ValueError
    with manager:
        x = x + 1
    return x, manager.seen


@contextlib.contextmanager
def _noting(seen):
    try:
        yield
    except ValueError as error:
        seen.append(error.__traceback__ is None)
        raise


def through_a_generator(x):
    seen = []
    try:
        with _noting(seen):
            raise ValueError("q")
    except ValueError as error:
        seen.append(error.__traceback__ is None)
    return x, seen


def in_an_exit_stack(x):
    calls = []
    with contextlib.suppress(KeyError), contextlib.ExitStack() as stack:
        stack.callback(calls.append, 1)
        raise KeyError
    return x, calls


def looked_into(x):
    try:
        raise KeyError("k")
    except KeyError:
        traceback = sys.exc_info()[2]
    return x + 1, traceback.tb_lineno > 0


WHOLE = (
    of_a_caught_exception,
    before_and_after,
    seen_by_exc_info,
    contexts,
    context_of_a_call,
    raised_once_more,
    given_to_exit,
    through_a_generator,
    in_an_exit_stack,
)


@pytest.mark.parametrize("program", (*WHOLE, looked_into), ids=lambda program: program.__name__)
def test_programs(program):
    run, said = compiled(program)
    for _ in range(2):
        (found, *seen), (expected, *wanted) = run(torch.ones(2)), program(torch.ones(2))
        assert torch.equal(found, expected)
        assert seen == wanted
    assert bool(said.breaks or said.skips) == (program not in WHOLE)
