"""Locks, and what the standard library makes of locks, in compiled functions."""

from __future__ import annotations

import _thread
import queue
import threading

import pytest
import torch
from compile_runs import check_program


def held_inside(x):
    lock, again = threading.Lock(), threading.RLock()
    with lock, again, again:
        x = x + lock.locked()
    return x, lock.locked()


def not_held_after_an_exception(x):
    lock = _thread.allocate_lock()
    try:
        with lock:
            raise ValueError
    except ValueError:
        return x + lock.locked()


def tried(x):
    lock = threading.Lock()
    lock.acquire()
    return x + lock.acquire(False) + lock.acquire(blocking=False) + lock.acquire(timeout=0)


def released_too_often(x):
    said = []
    for lock in (threading.Lock(), threading.RLock()):
        try:
            lock.release()
        except RuntimeError as error:
            said.append(str(error))
    return x + 1, said


def a_timeout_without_waiting(x):
    try:
        threading.Lock().acquire(False, 1.0)
    except ValueError as error:
        return x, str(error)


def leave_as_they_are(x):
    lock, again = threading.Lock(), threading.RLock()
    lock.acquire()
    again.acquire()
    again.acquire()
    return x + 1, lock, again, threading.Lock()


class Counter:
    def __init__(self):
        self.lock, self.value = threading.Lock(), 0

    def advance(self):
        with self.lock:
            self.value += 1


def in_an_object(x):
    counter = Counter()
    counter.advance()
    counter.advance()
    return x + counter.value


def events(x):
    event = threading.Event()
    before = event.is_set()
    event.set()
    return x + 1, before, event.wait()


def conditions_and_semaphores(x):
    condition, semaphore = threading.Condition(), threading.Semaphore(2)
    with condition, semaphore:
        condition.notify_all()
    return x + 1, semaphore.acquire(blocking=False)


def queues(x):
    waiting = queue.PriorityQueue()
    waiting.put((2, "a"))
    waiting.put((1, "b"))
    first = waiting.get()
    waiting.get()
    try:
        waiting.get_nowait()
    except queue.Empty:
        return x + first[0], waiting.qsize()


OUTSIDE = threading.Lock()


def of_the_program(x):
    with OUTSIDE:
        return x + OUTSIDE.locked()


def held_across_a_break(x):
    lock, again = threading.Lock(), threading.RLock()
    with lock, again:
        x = x + 1
        torch._dynamo.graph_break()
        x = x + lock.locked()
    return x, lock.locked()


WHOLE = (
    held_inside,
    not_held_after_an_exception,
    tried,
    released_too_often,
    a_timeout_without_waiting,
    leave_as_they_are,
    in_an_object,
    events,
    conditions_and_semaphores,
    queues,
)
LEFT = (of_the_program, held_across_a_break)


def _plain(value):
    if isinstance(value, tuple):
        return [*map(_plain, value)]
    if isinstance(value, _thread.LockType):
        return ("lock", value.locked())
    if isinstance(value, _thread.RLock):
        times = 0
        while value._is_owned():
            value.release()
            times += 1
        return ("rlock", times)
    return value.tolist() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("program", (*WHOLE, *LEFT), ids=lambda program: program.__name__)
def test_programs(program):
    check_program(program, _plain, is_whole=program in WHOLE)
