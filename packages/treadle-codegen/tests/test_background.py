"""The worker: jobs in order, waiting, a job that raises, forks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from treadle_codegen.background import Worker


@pytest.fixture
def worker() -> Worker:
    return Worker("test", lambda: None)


def test_jobs_run_in_order_in_one_thread_that_ends_with_them(worker: Worker) -> None:
    done: list[tuple[int, str]] = []

    def job(k: int) -> Callable[[], None]:
        return lambda: done.append((k, threading.current_thread().name))

    for turn in range(2):
        for k in range(5):
            worker.submit(job(k))
        assert worker.wait(30)
        assert done == [(k, "test") for k in range(5)] * (turn + 1)
    threads = [thread for thread in threading.enumerate() if thread.name == "test"]
    for thread in threads:
        thread.join(30)
    assert not [thread for thread in threads if thread.is_alive()]


def test_waiting_may_be_given_up(worker: Worker) -> None:
    go_on = threading.Event()
    worker.submit(lambda: go_on.wait(30))
    assert not worker.wait(0.01)
    go_on.set()
    assert worker.wait(30)


def test_a_job_that_raises_does_not_stop_the_others(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    raised: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda error: raised.append(error.exc_type.__name__))
    for k in (0, 1, 2):
        worker.submit(lambda k=k: done.append(1 // k))
    assert worker.wait(30)
    assert done == [1, 0] and raised == ["ZeroDivisionError"]


def test_a_child_does_what_was_not_done(worker: Worker) -> None:
    """The fork leaves the thread behind in the middle of a job; the child begins with that job."""
    running, go_on = threading.Event(), threading.Event()
    parent = os.getpid()
    done: list[str] = []

    def first() -> None:
        running.set()
        if os.getpid() == parent:
            go_on.wait(30)
        done.append("first")

    worker.submit(first)
    worker.submit(lambda: done.append("second"))
    assert running.wait(30)
    pid = os.fork()
    if pid == 0:
        right = worker.wait(30) and done == ["first", "second"]
        worker.submit(lambda: done.append("third"))
        os._exit(0 if right and worker.wait(30) and done[2:] == ["third"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    go_on.set()
    assert worker.wait(30) and done == ["first", "second"]
