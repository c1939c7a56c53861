"""Objects with a `__del__` that Python makes between two graphs: they die where they die in eager."""

from __future__ import annotations

import gc

import pytest
import torch
from compile_runs import compiled

LOG: list[object] = []


class Handle:
    def __init__(self, name="handle"):
        self.name = name
        LOG.append(f"open {name}")

    def __del__(self):
        LOG.append(f"del {self.name}")

    def __enter__(self):
        LOG.append("enter")
        return self

    def __exit__(self, *exception):
        LOG.append("exit")

    def __iter__(self):
        self.given = 0
        return self

    def __next__(self):
        if self.given == 3:
            raise StopIteration
        self.given += 1
        return self.given


class Generating(Handle):
    def __iter__(self):
        yield from range(3)


class Closing(Handle):
    def __iter__(self):
        try:
            for number in range(3):
                yield number
        finally:
            LOG.append("closed")


class Quiet(Handle):
    def __del__(self):
        if self.name == "loud":
            LOG.append("del loud")


def made(name):
    return Handle(name)


def in_a_variable(x):
    handle = Handle()
    y = x * 2
    LOG.append("middle")
    return y.relu() + len(LOG), handle is None


def never_read(x):
    handle = Handle()  # noqa: F841
    y = x * 2
    LOG.append("middle")
    y = y.sum().item() + y
    LOG.append("later")
    return y.relu() + len(LOG)


def deleted(x):
    handle = Handle()
    y = x * 2
    del handle
    LOG.append("deleted")
    return y.relu() + len(LOG)


def rebound(x):
    handle = Handle("one")
    y = x * 2
    handle = Handle("two")
    LOG.append("rebound")
    y = y.relu() + len(LOG)
    handle = None
    LOG.append("gone")
    return y + len(LOG), handle


def iterated(x):
    for number in Handle("iterator"):
        x = x * 2 + number
        LOG.append(number)
    LOG.append("behind")
    return x.relu() + len(LOG)


def iterated_by_a_generator(x):
    for number in Generating("generating"):
        x = x * 2 + number
        LOG.append(number)
    LOG.append("behind")
    return x.relu() + len(LOG)


def left_early(x):
    for number in Generating("generating"):
        x = x * 2 + number
        if number == 1:
            break
    LOG.append("behind")
    return x.relu() + len(LOG)


def closed_early(x):
    for number in Closing("closing"):
        x = x * 2 + number
        if number == 1:
            break
    LOG.append("behind")
    return x.relu() + len(LOG)


def entered(x):
    with Handle("entered") as handle:
        x = x * 2
        LOG.append("in")
    LOG.append("out")
    return x.relu() + len(LOG), handle.name


def entered_without_a_name(x):
    with Handle("entered"):
        x = x * 2
        LOG.append("in")
    LOG.append("out")
    return x.relu() + len(LOG)


def made_for_one_attribute(x):
    name = made("made").name
    LOG.append("after")
    return x * 2 + len(LOG), name


def made_in_a_loop(x):
    for number in range(3):
        handle = Handle(str(number))
        x = x * 2 + len(LOG)
    LOG.append("end")
    return x, handle.name


def in_a_cell(x):
    handle = Handle("cell")

    def drop():
        nonlocal handle
        handle = None
        LOG.append("dropped")
        return 3

    x = x * 2
    number = drop()
    LOG.append("after")
    return x + number, handle


def in_a_list(x):
    handles = [Handle("first"), Handle("second")]
    x = x * 2
    handles.pop()
    LOG.append("popped")
    return x.relu() + len(LOG)


def under_a_handler(x):
    handle = Handle()
    try:
        x = x * 2
        raise ValueError(handle.name)
    except ValueError as error:
        LOG.append(str(error))
    return x.relu() + len(LOG)


def inside_a_call(x):
    def helper(x):
        handle = Handle("inside")
        y = x * 2
        LOG.append("in the helper")
        return y, handle.name

    y, name = helper(x)
    LOG.append("after the helper")
    return y + len(LOG), name


def nested_loops(x):
    for row in Handle("outer"):
        for column in Generating("inner"):
            x = x + column * row
        LOG.append("row")
    LOG.append("end")
    return x * 2 + len(LOG)


def quiet(x):
    handle = Quiet("quiet")
    x = x * 2
    del handle
    LOG.append("after")
    return x.relu() + len(LOG)


def loud(x):
    handle = Quiet("loud")
    x = x * 2
    del handle
    LOG.append("after")
    return x.relu() + len(LOG)


PROGRAMS = [
    in_a_variable,
    never_read,
    deleted,
    rebound,
    iterated,
    iterated_by_a_generator,
    left_early,
    closed_early,
    entered,
    entered_without_a_name,
    made_for_one_attribute,
    made_in_a_loop,
    in_a_cell,
    in_a_list,
    under_a_handler,
    inside_a_call,
    nested_loops,
    quiet,
    loud,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_objects_die_where_they_die_in_eager(program):
    def outcome(function):
        LOG.clear()
        found = []
        for _ in range(3):
            found.append(function(torch.ones(2)))
            LOG.append("returned")
        return str(found), list(LOG)

    run, recorder = compiled(program)
    gc.collect()
    gc.disable()  # only reference counts may free them
    try:
        assert outcome(run) == outcome(program)
    finally:
        gc.enable()


@pytest.mark.parametrize("program", [in_a_variable, deleted, entered, made_in_a_loop, loud], ids=lambda f: f.__name__)
def test_what_follows_is_compiled(program):
    LOG.clear()
    run, recorder = compiled(program)
    run(torch.ones(2))
    assert recorder.graphs and not recorder.skips


def test_a_finalizer_that_does_nothing_breaks_nothing():
    run, recorder = compiled(quiet)
    run(torch.ones(2))
    assert len(recorder.graphs) == 1 and [reason.code for reason in recorder.breaks] == ["finalizer"]


def test_a_loop_is_a_constant_number_of_graphs():
    def counted(x, count):
        for number in Generating(count):
            x = x * 2 + number
        return x.relu()

    run, recorder = compiled(counted)
    run(torch.ones(2), 3)
    graphs = len(recorder.graphs)
    run(torch.ones(2), 3)
    assert graphs <= 4 and len(recorder.graphs) == graphs
