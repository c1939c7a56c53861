"""What eager survives, compiled code survives: deep recursion, calls from deep down, forks while another thread compiles."""

from __future__ import annotations

import inspect
import subprocess
import sys
import warnings

import pytest
import torch

import treadle


def _run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("before", ["", "print('a break')"])
def test_recursion_below_a_compiled_function(before):
    out = _run(f"""
import sys, torch, treadle
sys.setrecursionlimit(30000)

def count_down(n, x):
    return x + 1 if n == 0 else count_down(n - 1, x)

@treadle.compile
def program(x):
    {before or "pass"}
    return count_down(15000, x) * 2

for _ in range(3):
    assert program(torch.ones(2)).tolist() == [4, 4]
print("right")
""")
    assert out.endswith("right\n")


def _at_depth(depth, function, x):
    return function(x) if depth == 0 else _at_depth(depth - 1, function, x)


@pytest.mark.parametrize("room", [100, 60, 40, 30, 20, 15])
def test_the_first_call_comes_from_deep_down(room):
    def program(x):
        return torch.relu(x * 2 + 1).sum(0)

    x = torch.randn(3, 2)
    compiled = treadle.compile(program)
    depth = sys.getrecursionlimit() - len(inspect.stack()) - room
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(_at_depth(depth, compiled, x), program(x))
    torch.testing.assert_close(compiled(x), program(x))
    assert treadle.stats().graphs >= 1 and not treadle.stats().skipped


def test_a_chain_of_many_operators():
    def program(x):
        for k in range(5000):
            x = x + k
        return x

    torch.testing.assert_close(treadle.compile(program)(torch.zeros(3)), program(torch.zeros(3)))
    assert treadle.stats().eager_graphs == ()


def test_forks_while_another_thread_compiles():
    _run("""
import os, signal, threading, time, torch, treadle

def program(x):
    for k in range(40):
        x = torch.sin(x) + k
    return x

def compile_again_and_again():
    while not done.is_set():
        treadle.reset()
        treadle.compile(program)(torch.ones(2))
        started.set()

started, done = threading.Event(), threading.Event()
thread = threading.Thread(target=compile_again_and_again)
thread.start()
started.wait()
for turn in range(10):
    time.sleep(0.013 * turn)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        compiled = treadle.compile(lambda x: x.cos() + turn)
        os._exit(0 if torch.allclose(compiled(torch.ones(2)), torch.ones(2).cos() + turn) else 1)
    assert os.waitpid(child, 0)[1] == 0
done.set()
thread.join()
""")
