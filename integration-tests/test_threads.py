"""Eight threads with resets, forks and garbage collection at once; threads_at_once.py is the program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_eight_threads_with_resets_forks_and_collections():
    program = Path(__file__).with_name("threads_at_once.py")
    done = subprocess.run(
        [sys.executable, program, "4"], capture_output=True, text=True, timeout=300, check=False, errors="replace"
    )
    assert done.returncode == 0, done.stdout + done.stderr
