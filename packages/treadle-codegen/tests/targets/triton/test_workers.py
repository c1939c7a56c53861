"""The life of the processes that compile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator

import pytest
from targets.triton import units

from treadle_codegen.targets.triton import workers
from treadle_codegen.targets.triton.target import TRITON
from treadle_codegen.targets.triton.workers import Crashed, Request, WorkerPool

pytest.importorskip("triton")

SLOW = "import time\ntime.sleep(60)\n"


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool()
    yield pool
    pool.stop()


def request(name: str = "k_ppl", before: str = "") -> Request:
    return Request(
        name=name,
        text=f"{units.HEAD}{before}{units.add_one(name)}",
        signature=(("b0", "*fp32"), ("b1", "*fp32"), ("n0", "i64")),
        constants={"XBLOCK": 64},
        target=("cuda", 90, 32),
        options={},
        aligned=True,
    )


def test_a_process_serves_one_request_after_the_other(pool: WorkerPool) -> None:
    pool.compile(request())
    (worker,) = pool._idle
    for _ in range(3):
        assert pool.compile(request()).binary
    assert pool._idle == [worker]
    assert not pool._busy


def test_several_requests_run_at_once(pool: WorkerPool) -> None:
    waits = "import time\ntime.sleep(0.5)\n"
    pool.compile_all([request()] * 3, at_once=3)
    start = time.perf_counter()
    answers = pool.compile_all([request(before=waits)] * 3, at_once=3)
    assert time.perf_counter() - start < 1.3
    assert all(not isinstance(a, Crashed) and a.binary for a in answers)


def test_a_process_that_went_away_while_idle_is_replaced(pool: WorkerPool) -> None:
    pool.compile(request())
    (worker,) = pool._idle
    worker._requests.close()  # what the end of its idle time looks like: it ends by itself
    worker.process.wait(10)
    worker._requests = open(os.devnull, "wb")  # noqa: SIM115
    assert pool.compile(request()).binary
    assert worker not in pool._idle


def test_a_process_with_other_settings_is_replaced(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    pool.compile(request())
    (worker,) = pool._idle
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    pool.compile(request())
    assert worker not in pool._idle and worker.process.poll() is not None


def test_an_interrupt_ends_a_build(pool: WorkerPool) -> None:
    pool.compile(request())
    threading.Timer(0.5, pool.interrupt).start()
    start = time.perf_counter()
    with pytest.raises(Crashed) as caught:
        pool.compile(request(before=SLOW))
    assert caught.value.status == -signal.SIGKILL
    assert time.perf_counter() - start < 10
    assert not pool._busy
    assert pool.compile(request()).binary


def test_an_exception_while_waiting_drops_the_process(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer would be taken for that of the next request."""
    pool.compile(request())
    (worker,) = pool._idle
    read = workers.compile_worker.read_message

    def interrupted(stream: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(workers.compile_worker, "read_message", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.compile(request())
    monkeypatch.setattr(workers.compile_worker, "read_message", read)
    assert worker.process.poll() is not None
    assert not pool._idle
    assert not pool._busy


def test_a_forked_child_starts_processes_of_its_own(pool: WorkerPool) -> None:
    pool.compile(request())
    (worker,) = pool._idle
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert pool._idle == []
            assert pool.compile(request()).binary
            pool.stop()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert worker.process.poll() is None
    assert pool.compile(request()).binary


def test_processes_end_with_the_program_even_if_it_is_killed() -> None:
    code = textwrap.dedent("""
        import os, sys, threading
        sys.path[:0] = %r
        from targets.triton import test_workers as t
        from treadle_codegen.targets.triton.workers import FOREGROUND
        FOREGROUND.compile(t.request())
        worker = FOREGROUND._idle[0]
        threading.Thread(target=FOREGROUND.compile, args=(t.request(before=t.SLOW),), daemon=True).start()
        while FOREGROUND._idle: pass
        print(worker.process.pid, flush=True)
        sys.stdin.read(1)
        if sys.argv[1] == "kill": os.kill(os.getpid(), 9)
    """)
    for way in ("exit", "kill"):
        program = subprocess.Popen(
            [sys.executable, "-c", code % sys.path, way], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert program.stdin is not None and program.stdout is not None
        pid = int(program.stdout.readline())
        program.stdin.close()
        program.wait(20)
        program.stdout.close()
        deadline = time.monotonic() + 10
        while _alive(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_target_interrupts_builds_in_the_background() -> None:
    background = workers.BACKGROUND
    background.compile(request())
    threading.Timer(0.5, TRITON.interrupt_builds).start()
    with pytest.raises(Crashed):
        background.compile(request(before=SLOW))


def test_importing_the_target_loads_no_processes_and_no_triton() -> None:
    code = "import sys, treadle_codegen.targets.table; print([m for m in sys.modules if m.endswith('triton.workers') or m == 'triton'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
