"""The processes that compile kernels: started when there is work for them, and kept for the next.

One that is idle waits for requests. Builds in the background have a process of their own, at low priority, which
`stop_background_builds` kills. A forked child does not use its parent's processes.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from treadle_codegen.errors import CodegenUnavailable
from treadle_codegen.targets.triton import compile_worker

_ROOT = Path(__file__).parents[3]  # where this package is found, whatever import hooks found it
_NICENESS = 10  # of builds in the background
# Settings of Triton that say where it keeps files and what it prints, not what it makes.
_HARMLESS = frozenset("TRITON_INTERPRET TRITON_CACHE_DIR TRITON_HOME TRITON_DUMP_DIR TRITON_PRINT_AUTOTUNING".split())


def settings() -> str:
    """The environment variables that Triton's compiler looks at, as text."""
    return repr(sorted((k, v) for k, v in os.environ.items() if k.startswith("TRITON_") and k not in _HARMLESS))


class Request(TypedDict):
    """What a process compiles.

    text, name: the kernel and the module around it; signature: (argument, Triton type) of run-time arguments; constants:
    values of the others; target: arguments of Triton's `GPUTarget`; options: of Triton's compiler; aligned: every pointer is
    a multiple of 16 bytes.
    """

    name: str
    text: str
    signature: Sequence[tuple[str, str]]
    constants: dict[str, Any]
    target: tuple[str, int | str, int]
    options: dict[str, Any]
    aligned: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a request: the binary with its facts, or why Triton refused the kernel."""

    binary: bytes = b""
    facts: dict[str, Any] | None = None
    error: str = ""


class _Gone(Exception):
    """The process ended before it accepted the request."""


class Worker:
    """One compiling process."""

    def __init__(self, niceness: int) -> None:
        if not sys.executable:
            raise CodegenUnavailable(
                "kernels are compiled in processes of their own, and sys.executable names no Python"
            )
        # A file, not a pipe: nobody needs to read it while the process runs.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the process
        self.settings = settings()
        environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        self.process = subprocess.Popen(
            [sys.executable, "-B", compile_worker.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            start_new_session=True,  # interrupts of the terminal are meant for the program
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self._requests, self._answers = self.process.stdin, self.process.stdout
        self._send({"niceness": niceness, "path": [*(path or os.getcwd() for path in sys.path), str(_ROOT)]})

    def _send(self, message: Any) -> None:
        compile_worker.write_message(self._requests, message)  # type: ignore[arg-type]

    def compile(self, request: Request) -> Answer:
        """The answer. Raises _Gone if the process was not there to take the request, CodegenUnavailable if it was killed."""
        start = self._errors.seek(0, os.SEEK_END)
        try:
            self._send(dict(request))
            accepted = compile_worker.read_message(self._answers)  # type: ignore[arg-type]
        except (BrokenPipeError, ConnectionResetError):
            accepted = None
        if accepted is None and self._died_unasked():
            raise _Gone
        answer = compile_worker.read_message(self._answers) if accepted else None  # type: ignore[arg-type]
        self._errors.seek(start)
        printed = self._errors.read().decode(errors="replace")
        if answer is None:
            raise Crashed(self.process.wait(), printed)
        if "error" in answer:
            return Answer(error=f"{answer['error']}\n{printed}".strip())
        return Answer(answer["binary"], answer["facts"])

    def _died_unasked(self) -> bool:
        """Whether it ended by itself: because it was idle for long."""
        return self.process.wait() == 0

    def kill(self) -> None:
        """End the process and the programs that it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.close()

    def close(self) -> None:
        for stream in (self._requests, self._answers, self._errors):
            with contextlib.suppress(OSError):
                stream.close()


class Crashed(Exception):
    """The process died with `status` while it compiled; `printed` is what it said."""

    def __init__(self, status: int, printed: str) -> None:
        super().__init__(f"status {status}: {printed}")
        self.status, self.printed = status, printed


class WorkerPool:
    """Compiling processes that are kept between requests. `niceness` is added to theirs."""

    def __init__(self, niceness: int = 0) -> None:
        self._niceness = niceness
        self._forget()
        os.register_at_fork(after_in_child=self._after_fork)
        atexit.register(self.stop)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._busy: set[Worker] = set()

    def _after_fork(self) -> None:
        for worker in [*self._idle, *self._busy]:
            worker.close()  # else the parent's processes would not notice its end
        self._forget()

    def compile(self, request: Request) -> Answer:
        """Compile one kernel in a process that has nothing else to do. Raises Crashed, CodegenUnavailable, OSError."""
        while True:
            worker = self._take()
            try:
                answer = worker.compile(request)
            except _Gone:
                self._drop(worker)
                continue
            except BaseException:  # also an interrupt by the user: the answer is still to come
                self._drop(worker)
                raise
            with self._lock:
                self._busy.discard(worker)
                self._idle.append(worker)
            return answer

    def compile_all(self, requests: Sequence[Request], at_once: int) -> list[Answer | Crashed]:
        """Compile kernels, `at_once` at the same time."""
        if min(at_once, len(requests)) <= 1:
            return [self._compile_or_crash(request) for request in requests]
        with ThreadPoolExecutor(min(len(requests), at_once), "treadle-triton") as threads:
            return list(threads.map(self._compile_or_crash, requests))

    def _compile_or_crash(self, request: Request) -> Answer | Crashed:
        try:
            return self.compile(request)
        except Crashed as crash:
            return crash

    def _take(self) -> Worker:
        wanted = settings()
        with self._lock:
            outdated = [worker for worker in self._idle if worker.settings != wanted]
            self._idle = [worker for worker in self._idle if worker.settings == wanted]
            worker = self._idle.pop() if self._idle else Worker(self._niceness)
            self._busy.add(worker)
        for other in outdated:
            other.kill()
        return worker

    def _drop(self, worker: Worker) -> None:
        with self._lock:
            self._busy.discard(worker)
        worker.kill()

    def interrupt(self) -> None:
        """Kill the processes that compile; `compile` raises Crashed where it waits for one."""
        for worker in list(self._busy):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(worker.process.pid, signal.SIGKILL)

    def stop(self) -> None:
        """Kill all processes."""
        self.interrupt()
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.kill()


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


FOREGROUND = WorkerPool()
BACKGROUND = WorkerPool(_NICENESS)


def stop_background_builds() -> None:
    """End builds in the background early, because the process ends."""
    BACKGROUND.interrupt()
