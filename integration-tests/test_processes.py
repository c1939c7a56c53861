"""Two processes filling one cache, and a process killed in the middle of a compile."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

PROGRAM = """
import torch, treadle
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4)).eval()
x = torch.randn(5, 16)
print("ready", flush=True)
with torch.no_grad():
    compiled = treadle.compile(model)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)
    f = treadle.compile(lambda x: (x.sin() * x.exp()).softmax(-1))
    torch.testing.assert_close(f(x), (x.sin() * x.exp()).softmax(-1))
print("right", treadle.stats().cache_hits, flush=True)
"""


def start(directory):
    return subprocess.Popen(
        [sys.executable, "-W", "error::UserWarning", "-c", PROGRAM],
        env={**os.environ, "TREADLE_CACHE_DIR": str(directory), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    """Wait for the program, which checks its own results; gives its number of cache hits."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "right" in out
    return int(out.split()[-1])


def test_two_processes_fill_the_same_cache(tmp_path):
    processes = [start(tmp_path) for _ in range(2)]
    for process in processes:
        finish(process)
    assert finish(start(tmp_path)) == 2


def test_a_killed_compile_leaves_a_usable_cache(tmp_path):
    rng = random.Random(1)
    for _ in range(3):
        process = start(tmp_path)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.uniform(0.0, 0.6))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    finish(start(tmp_path))
