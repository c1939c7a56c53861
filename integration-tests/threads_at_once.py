"""Eight threads call, compile, reset, collect and fork at once: `python threads_at_once.py SECONDS`, run by test_threads.py.

Every result is compared with eager's, in the threads and in the children. An internal error of treadle is raised. The numbers of calls,
resets, collections and forks are printed.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import random
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import treadle
from treadle_frame import StaleGuardWarning

CHILD_SECONDS = 20


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.relu(self.linear(x)) + x


class Node:
    """Part of a reference cycle, so that the collector has work."""

    def __init__(self, value: Any) -> None:
        self.value, self.itself = value, self


def pointwise(x: torch.Tensor, k: int) -> torch.Tensor:
    return torch.sin(x) * k + 1


def with_a_break(x: torch.Tensor, k: int) -> torch.Tensor:
    y = x.cos() + k
    os.getpid()
    return y * 2


def with_cycles(x: torch.Tensor, k: int) -> torch.Tensor:
    node = Node(x + k)
    return node.itself.value * 2


def raises(x: torch.Tensor, k: int) -> torch.Tensor:
    try:
        raise ValueError(k)
    except ValueError as error:
        return x * error.args[0]


FUNCTIONS: tuple[Callable[[torch.Tensor, int], torch.Tensor], ...] = (pointwise, with_a_break, with_cycles, raises)
shared = [(function, treadle.compile(function)) for function in FUNCTIONS]
block = Block().eval()
compiled_block = treadle.compile(block)


def call_something(random_: random.Random, kind: int | None = None) -> None:
    """One call of a function that all threads share, or of a fresh closure or model of this thread."""
    x, k = torch.randn(random_.choice((1, 2, 3)), 4), random_.choice((2, 3, 5))
    kind = random_.randrange(8) if kind is None else kind
    if kind < 5:
        function, compiled = random_.choice(shared)
        torch.testing.assert_close(compiled(x, k), function(x, k))
    elif kind == 5:
        with torch.no_grad():
            torch.testing.assert_close(compiled_block(x), block(x))
    elif kind == 6:
        own = treadle.compile(lambda x: x * k - 1)
        torch.testing.assert_close(own(x), x * k - 1)
    else:
        model = Block()
        results = [call(x).sum() for call in (model, treadle.compile(model))]
        grads = [torch.autograd.grad(result, model.linear.weight)[0] for result in results]
        torch.testing.assert_close(*grads)


def call_in_a_child(random_: random.Random) -> None:
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(CHILD_SECONDS, exit=True)
        try:
            for _ in range(3):
                call_something(random_)
        except BaseException as error:
            os.write(2, f"in a child: {error!r}\n".encode())
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status == 0, f"a child ended with status {status}"


def reset(random_: random.Random) -> None:
    treadle.reset()
    time.sleep(0.05)


def collect(random_: random.Random) -> None:
    gc.collect()
    time.sleep(0.01)


JOBS = {
    "calls": [call_something] * 5,
    "resets": [reset],
    "collections": [collect],
    "forks": [call_in_a_child],
}


def main(seconds: float) -> int:
    faulthandler.enable()
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # 3.12 and later: fork in a process with threads
    # A counter that an entry is guarded by may have moved on, in another thread, while the entry was made.
    warnings.filterwarnings("ignore", category=StaleGuardWarning)
    sys.setswitchinterval(1e-4)
    gc.set_threshold(200, 5, 5)
    torch.set_num_threads(1)
    counts, errors = Counter[str](), list[str]()

    def work(name: str, job: Callable[[random.Random], None], seed: int) -> None:
        random_ = random.Random(seed)
        try:
            while not counts[name] or (time.monotonic() < end and not errors):
                job(random_)
                counts[name] += 1
        except BaseException as error:
            errors.append(f"{name}: {error!r}\n{traceback.format_exc()}")

    # A module whose import another thread has begun cannot be imported in a child: that is CPython's. So all is imported before.
    for kind in range(8):
        call_something(random.Random(kind), kind)
    end = time.monotonic() + seconds
    jobs = [(name, job) for name, several in JOBS.items() for job in several]
    with treadle.config.patch(raise_internal_errors=True):
        threads = [threading.Thread(target=work, args=(*job, seed)) for seed, job in enumerate(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(*errors, dict(counts), sep="\n")
    return bool(errors) or set(counts) != set(JOBS)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
