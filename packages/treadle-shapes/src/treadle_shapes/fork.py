"""Locks that are sound after a fork.

A child has only the thread that forked. A lock that another thread holds is never released there, and what it protects may be half
changed. So the forking thread takes such locks first, and waits for the other threads to be done.
"""

from __future__ import annotations

import os
import threading
from typing import Any

# Seconds that a fork waits for a lock. A thread that holds it for longer may itself wait for the thread that forks.
_PATIENCE = 60.0


def held_during_fork(lock: Any) -> Any:
    """`lock` (a `threading.Lock` or `RLock`), held by the thread that forks while it forks. Returns the lock.

    Locks are taken in reverse order of these calls, so a lock that is taken while others are held comes before them. If a lock cannot
    be had within a minute, the fork goes on, and the child's lock is free.
    """
    mine = threading.local()

    def take() -> None:
        mine.is_held = lock.acquire(timeout=_PATIENCE)

    def release() -> None:
        if mine.is_held:
            lock.release()

    def release_in_child() -> None:
        if mine.is_held:
            lock.release()
        else:
            lock._at_fork_reinit()  # what `threading` and `logging` do with theirs

    os.register_at_fork(before=take, after_in_parent=release, after_in_child=release_in_child)
    return lock


__all__ = ["held_during_fork"]
