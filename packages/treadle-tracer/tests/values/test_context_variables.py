"""Context variables and thread locals: what compiled functions read and write, in threads and contexts of their own."""

from __future__ import annotations

import contextvars
import threading

import pytest
import torch
from compile_runs import compiled

SCALE = contextvars.ContextVar("SCALE", default=2)
UNSET = contextvars.ContextVar("UNSET")
LOCAL = threading.local()


class OfThread(threading.local):
    def __init__(self):
        self.start = 5


class Counter(threading.local):
    step = 2  # of the class: the same in all threads

    def __init__(self, start):
        self.count = start
        self.history = []

    @property
    def doubled(self):
        return self.count * 2

    def advance(self, x):
        self.count += self.step
        self.history.append(self.count)
        return x * self.doubled


class Recorder(threading.local):
    active = None

    def __getattr__(self, name):
        return 7 if name == "missing" else super().__getattribute__(name)


OF_THREAD = OfThread()
COUNTER = Counter(3)
RECORDER = Recorder()


def set_and_reset(x):
    token = SCALE.set(5)
    y = x * SCALE.get()
    SCALE.reset(token)
    return y + SCALE.get()


def counted(x):
    SCALE.set(SCALE.get() + 1)
    return x + SCALE.get()


def without_a_value(x):
    try:
        return x + UNSET.get()
    except LookupError as error:
        return x - 1, error.args[0] is UNSET


def with_a_default(x):
    return x + UNSET.get(7)


def nested(x):
    outer = UNSET.set(x * 2)
    y = UNSET.get() + 1
    inner = UNSET.set(3)
    y = y + UNSET.get()
    UNSET.reset(inner)
    y = y + UNSET.get()
    UNSET.reset(outer)
    return y, UNSET.get(None)


def left_set(x):
    UNSET.set(x + 1)
    return UNSET.get() * 2


def broken(x):
    token = SCALE.set(9)
    try:
        y = x + SCALE.get() if x.sum() > 0 else x - SCALE.get()
    finally:
        SCALE.reset(token)
    return y + SCALE.get()


def local_count(x):
    LOCAL.count = getattr(LOCAL, "count", 0) + 1
    return x * LOCAL.count


def local_deleted(x):
    LOCAL.kept = x + 1
    y = LOCAL.kept * 2
    del LOCAL.kept
    return y, hasattr(LOCAL, "kept")


def local_dict(x):
    LOCAL.__dict__["fresh"] = 3
    return x + LOCAL.fresh, len(vars(LOCAL))


def of_a_subclass(x):
    OF_THREAD.start += 1
    return x + OF_THREAD.start, hasattr(OF_THREAD, "start")


def by_a_method(x):
    y = COUNTER.advance(x)
    return y, sorted(vars(COUNTER)), COUNTER.__dict__["count"], len(COUNTER.history)


def with_defaults_of_the_class(x):
    recorder = RECORDER.active
    if recorder is None:
        RECORDER.active = [1]
        return x + RECORDER.missing
    recorder.append(2)
    found = getattr(RECORDER, "other", 5)
    RECORDER.other = len(recorder)
    if len(recorder) > 2:
        del RECORDER.active
    return x * len(recorder) + found


def in_a_copy(x):
    context = contextvars.copy_context()
    seen = [context.run(lambda: x * SCALE.get())]

    def sets(value):
        SCALE.set(SCALE.get() + value)
        UNSET.set(x)
        return SCALE.get()

    seen += [context.run(sets, value=3), SCALE.get(), UNSET.get(None), context.run(SCALE.get), context.run(sets, 4)]
    return *seen, SCALE.get(), context.run(UNSET.get)


def copied_after_a_write(x):
    SCALE.set(7)
    context = contextvars.copy_context()
    SCALE.set(8)
    UNSET.set(1)
    return x * context.run(SCALE.get), context.run(UNSET.get, None), SCALE.get()


def raised_in_a_copy(x):
    context = contextvars.copy_context()

    def fails():
        SCALE.set(11)
        raise ValueError("inside")

    try:
        context.run(fails)
    except ValueError as error:
        return x + SCALE.get(), context.run(SCALE.get), str(error)
    return x


def broken_in_a_copy(x):
    context = contextvars.copy_context()

    def breaks():
        SCALE.set(11)
        y = x + 1 if x.sum() > 0 else x - 1
        return y * SCALE.get()

    y = context.run(breaks)
    return y * 2, SCALE.get(), context.run(SCALE.get)


def copy_across_a_break(x):
    SCALE.set(3)
    context = contextvars.copy_context()
    context.run(UNSET.set, x * 2)
    SCALE.set(4)
    y = x + 1 if x.sum() > 0 else x - 1
    return y, context.run(UNSET.get), context.run(SCALE.get), SCALE.get(), UNSET.get(None)


def token_of_another_context(x):
    token = SCALE.set(3)
    try:
        contextvars.copy_context().run(SCALE.reset, token)
    except ValueError:
        return x + 1, SCALE.get()
    return x, SCALE.get()


def entered_twice(x):
    context = contextvars.copy_context()
    try:
        context.run(lambda: context.run(SCALE.get))
    except RuntimeError:
        return x + 1
    return x


def _plain(value):
    if isinstance(value, tuple):
        return [*map(_plain, value)]
    return value.tolist() if isinstance(value, torch.Tensor) else value


def _outcomes(run):
    """What four calls give and leave behind, in two threads and then in this one, each with a fresh context."""
    found = []

    def calls():
        for number in range(4):
            found.append(_plain(run(torch.full((2,), float(number)))))
            found.append([SCALE.get(), _plain(UNSET.get(None)), dict(vars(LOCAL))])
            found.append([dict(vars(local)) for local in (OF_THREAD, COUNTER, RECORDER)])

    def in_a_context():
        contextvars.Context().run(calls)

    for _ in range(2):
        thread = threading.Thread(target=in_a_context)
        thread.start()
        thread.join()
    vars(LOCAL).clear()
    OF_THREAD.start = 5
    COUNTER.__init__(3)
    vars(RECORDER).clear()
    in_a_context()
    return found


PROGRAMS = (
    set_and_reset,
    counted,
    without_a_value,
    with_a_default,
    nested,
    left_set,
    local_count,
    local_deleted,
    local_dict,
    broken,
    of_a_subclass,
    by_a_method,
    with_defaults_of_the_class,
    in_a_copy,
    copied_after_a_write,
    raised_in_a_copy,
    broken_in_a_copy,
    copy_across_a_break,
    token_of_another_context,
    entered_twice,
)
BREAKING = (
    broken,
    broken_in_a_copy,
    copy_across_a_break,
    token_of_another_context,
    entered_twice,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs(program):
    run, said = compiled(program)
    assert _outcomes(run) == _outcomes(program)
    assert bool(said.breaks) == (program in BREAKING)
