"""Background jobs: one thread runs them in order and lives as long as there are any.

A forked child has no such thread. It starts its own with its next job, and begins with the jobs that were not done. At the end
of the process the current job is interrupted.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable

_PATIENCE = 50  # tenths of a second that the end of the process waits for a job to be cut short


class Worker:
    """Runs jobs one after the other. `interrupt` makes the current job end early; it may be called more than once."""

    def __init__(self, name: str, interrupt: Callable[[], None]) -> None:
        self._name = name
        self._interrupt = interrupt
        self._jobs: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False
        os.register_at_fork(after_in_child=self._after_fork)
        atexit.register(self._close)

    def submit(self, job: Callable[[], None]) -> None:
        """Queue a job. What it raises goes to `threading.excepthook`."""
        with self._changed:
            self._jobs.append(job)
            self._start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no job is left, at most `timeout` seconds. Returns whether none is left."""
        with self._changed:
            self._start()
            return self._changed.wait_for(lambda: not self._jobs, timeout)

    def _start(self) -> None:
        if self._thread is None and self._jobs and not self._closing:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            while self._jobs and not self._closing:
                try:
                    self._jobs[0]()
                finally:
                    with self._changed:
                        self._jobs.popleft()
                        self._changed.notify_all()
        finally:
            with self._changed:
                self._thread = None
                self._start()  # a job may have come in between, or one has raised

    def _after_fork(self) -> None:
        self._changed = threading.Condition()
        self._thread = None

    def _close(self) -> None:
        self._closing = True
        for _ in range(_PATIENCE):
            thread = self._thread
            if thread is None:
                return
            self._interrupt()
            thread.join(0.1)
