"""Locks in a child of a process with several threads."""

from __future__ import annotations

import os
import threading

import pytest

from treadle_shapes import fork, held_during_fork


def _exit_of_child(check: object) -> int:
    child = os.fork()
    if child == 0:
        os._exit(0 if check() else 1)  # type: ignore[operator]
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("kind", [threading.Lock, threading.RLock])
def test_a_fork_waits_for_the_thread_that_holds_the_lock(kind: object) -> None:
    lock = held_during_fork(kind())  # type: ignore[operator]
    is_held, changed = threading.Event(), []

    def change() -> None:
        with lock:
            is_held.set()
            changed.append(1)
            threading.Event().wait(0.2)
            changed.append(2)

    thread = threading.Thread(target=change)
    thread.start()
    is_held.wait()
    assert _exit_of_child(lambda: changed == [1, 2] and lock.acquire(blocking=False)) == 0
    thread.join()
    assert lock.acquire(blocking=False)
    lock.release()


def test_a_lock_that_is_not_given_back_is_free_in_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork, "_PATIENCE", 0.01)
    lock = held_during_fork(threading.Lock())
    with lock:
        assert _exit_of_child(lambda: lock.acquire(blocking=False)) == 0
        assert lock.locked()
