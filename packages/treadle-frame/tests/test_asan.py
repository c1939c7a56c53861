"""The tests of everything that touches memory, under AddressSanitizer and UBSan."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
UNAVAILABLE = 77
# Left out: what exhausts the stack (a sanitized frame is several times as large) or starts processes of its own.
LEFT_OUT = (
    "not (limit or exhaust or recursion or deeply or subinterpreter or exits or foreign_evaluator or torch or tensors)"
)
CHOSEN = ["test_hook.py", "test_cache.py", "test_frame_run.py", "test_guard_eval.py", "test_guard_checks.py"]
CHOSEN += [
    "test_guard_program.py",
    "test_guard_memo.py",
    "test_guard_memo_random.py",
    "test_dispatcher.py",
    "test_inspect.py",
]


@pytest.mark.slow
@pytest.mark.skipif("TREADLE_FRAME_UNDER" in os.environ, reason="is running under the sanitizers already")
def test_under_the_sanitizers() -> None:
    command = [sys.executable, str(TESTS / "asan" / "run.py"), "-k", LEFT_OUT, *(str(TESTS / name) for name in CHOSEN)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode == UNAVAILABLE:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert " passed" in done.stdout
