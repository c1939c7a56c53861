"""What an exception has got from being raised, as compiled functions see it."""

from __future__ import annotations

import contextlib
import sys
import traceback

import pytest
import torch
from compile_runs import compiled, item


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


def _stops(x):
    yield x
    raise StopIteration(3)


def stop_iteration_out_of_a_generator(x):
    try:
        return list(_stops(x))
    except RuntimeError as error:
        cause = error.__cause__
        return x, str(error), type(cause), cause.args, cause is error.__context__, error.__suppress_context__


async def _stops_at_once():
    raise StopIteration(4)


def stop_iteration_out_of_a_coroutine(x):
    try:
        _stops_at_once().send(None)
    except RuntimeError as error:
        return x, str(error), error.__cause__.args, error.__cause__ is error.__context__


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
    stop_iteration_out_of_a_generator,
    stop_iteration_out_of_a_coroutine,
)


@pytest.mark.parametrize("program", (*WHOLE, looked_into), ids=lambda program: program.__name__)
def test_programs(program):
    run, said = compiled(program)
    for _ in range(2):
        (found, *seen), (expected, *wanted) = run(torch.ones(2)), program(torch.ones(2))
        assert torch.equal(found, expected)
        assert seen == wanted
    assert bool(said.breaks or said.skips) == (program not in WHOLE)


# ---- exceptions that leave the compiled part: their tracebacks and contexts are those of Python


def kept(x):
    last = None
    for divisor in (1, 0):
        try:
            x = x * (1 // divisor)
        except ZeroDivisionError as error:
            last = error
    return x + 1, last


def kept_behind_a_break(x):
    try:
        _fails()
    except IndexError as error:
        last = error
    item(x.sum())
    return x + 1, last


def kept_with_its_context(x):
    try:
        try:
            raise ValueError(1)
        except ValueError as error:
            y = x + 1
            item(x.sum())
            raise KeyError(2) from error
        finally:
            x = x * 2
    except KeyError as error:
        return y, error


def kept_with_two_contexts(x):
    try:
        try:
            {}["a"]
        except KeyError:
            try:
                _fails()
            except IndexError:
                raise OSError("b")  # noqa: B904
    except OSError as error:
        return x * 2, [error]


class Log:
    def __init__(self):
        self.errors = []


def stored(x):
    log = Log()
    try:
        raise RuntimeError("a")
    except RuntimeError as error:
        log.errors.append(error)
    return x + 1, log.errors


def parts_of_a_group(x):
    try:
        raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
    except* ValueError as group:
        first = group
    except* TypeError as group:
        second = group
    return x + 1, first, second


def _story(result):
    """What is seen of exceptions: class, arguments, cause, context, and the functions and lines of the traceback."""
    if isinstance(result, torch.Tensor):
        return result.tolist()
    if isinstance(result, (list, tuple)):
        return [_story(part) for part in result]
    if not isinstance(result, BaseException):
        return result
    names = _story(result.__cause__), _story(result.__context__), result.__suppress_context__
    inner = _story(result.exceptions) if isinstance(result, BaseExceptionGroup) else None
    lines = [
        (part.name, part.lineno) for part in traceback.extract_tb(result.__traceback__) if part.filename == __file__
    ]
    return type(result), str(result.args), inner, names, list(dict.fromkeys(lines))


KEPT = (kept, kept_behind_a_break, kept_with_its_context, kept_with_two_contexts, stored, parts_of_a_group)


@pytest.mark.parametrize("program", KEPT, ids=lambda f: f.__name__)
def test_an_exception_that_is_kept_has_its_traceback_and_context(program):
    fn, said = compiled(program)
    for x in (torch.ones(2), torch.zeros(2), torch.ones(3)):
        own = program(x)
        assert _story(fn(x)) == _story(own)
    # Python runs what has an `except*`: a frame cannot be left inside one.
    assert bool(said.graphs) == (program is not parts_of_a_group)
