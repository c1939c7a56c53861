"""Handlers of signals wait for the end of the outermost block, in the main thread, and are afterwards as they were."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from treadle_shapes import signals_held

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="there are no such signals here")


@pytest.fixture(autouse=True)
def interrupts():
    """Python's own handler: jobs that a shell has put into the background ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def hits():
    found: list[int] = []
    numbers = (signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.signal(number, lambda number, frame: found.append(number)) for number in numbers]
    yield found
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_handlers_run_behind_the_outermost_block(hits):
    handler = signal.getsignal(signal.SIGUSR1)
    with signals_held():
        with signals_held():
            signal.raise_signal(signal.SIGUSR2)
            signal.raise_signal(signal.SIGUSR1)
        assert hits == []
    assert hits == [signal.SIGUSR2, signal.SIGUSR1] and signal.getsignal(signal.SIGUSR1) is handler
    signal.raise_signal(signal.SIGUSR1)
    assert hits[2:] == [signal.SIGUSR1]


def test_an_interrupt_ends_the_block_only_if_it_is_the_second(hits):
    steps = []
    with pytest.raises(KeyboardInterrupt), signals_held():
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGINT)
        steps.append("behind the first")
        signal.raise_signal(signal.SIGINT)
        steps.append("behind the second")
    assert steps == ["behind the first"] and hits == [signal.SIGUSR1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_handlers_run_although_one_raises(hits):
    with pytest.raises(KeyboardInterrupt), signals_held():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGUSR1)
    assert hits == [signal.SIGUSR1]


def test_an_exception_of_the_block_is_the_context_of_the_handlers():
    with pytest.raises(KeyboardInterrupt) as raised, signals_held():
        signal.raise_signal(signal.SIGINT)
        raise ValueError
    assert isinstance(raised.value.__context__, ValueError)


def test_a_handler_installed_inside_stays(hits):
    def own(number, frame):
        hits.append("own")

    with signals_held():
        signal.signal(signal.SIGUSR1, own)
    signal.raise_signal(signal.SIGUSR1)
    assert signal.getsignal(signal.SIGUSR1) is own and hits == ["own"]


def test_ignored_signals_are_ignored():
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with signals_held():
            assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_other_threads_hold_nothing(hits):
    inside, seen = threading.Event(), threading.Event()

    def hold():
        with signals_held():
            inside.set()
            assert seen.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(60)
    signal.raise_signal(signal.SIGUSR1)
    assert hits == [signal.SIGUSR1]
    seen.set()
    thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_has_its_own_handlers(hits):
    handler = signal.getsignal(signal.SIGUSR1)
    with signals_held():
        pid = os.fork()
        if pid == 0:
            os._exit(signal.getsignal(signal.SIGUSR1) is not handler)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
