"""A prologue over weights whose values are compared with what they are to be, for tests of how writes are noticed."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import fx

from treadle_codegen import CodegenOptions
from treadle_codegen.rewrite.static import Prologue
from treadle_codegen.targets.cpp import written_pages
from treadle_codegen.targets.cpp.probe import _FIRST_PATIENCE, PROBE
from treadle_codegen.targets.cpp.renderer import CppRenderer
from treadle_codegen.targets.cpp.written_pages import _Process, is_available, why_not_tracked

PAGE = mmap.PAGESIZE
LARGE = 40 * PAGE // 4
"""Elements of float32 of a tensor that is watched."""


@functools.cache
def probe() -> Callable[[Sequence[torch.Tensor]], Callable[[], int]]:
    renderer = CppRenderer(CodegenOptions())
    return PROBE.sampler(renderer.load(renderer.prelude + PROBE.text, [PROBE.entry])[0][PROBE.entry])


class Kept:
    """A prologue of `weight * 2` for every weight, which counts how often it runs."""

    def __init__(self, *weights: torch.Tensor) -> None:
        self.weights = weights
        self.runs = 0
        graph = fx.Graph()
        inputs = [graph.placeholder(f"w{k}") for k in range(len(weights))]
        graph.output(tuple(graph.call_function(self._double, (w,)) for w in inputs))
        self.prologue = Prologue(fx.GraphModule({}, graph), tuple(range(len(weights))), probe())

    def _double(self, weight: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        return weight * 2

    def check(self) -> None:
        """Raises AssertionError where a value is not the weight's double."""
        for value, weight in zip(self.prologue(self.weights), self.weights, strict=True):
            assert torch.equal(value, weight * 2)

    def settle(self) -> None:
        """Check so often that the weights are watched, those that can be."""
        for _ in range(2 + _FIRST_PATIENCE):
            self.check()

    @property
    def sample(self) -> Any:
        return self.prologue._kept.sample

    @property
    def watched(self) -> set[int]:
        """Which of the weights the kernel watches."""
        group = self.sample._group
        return {group.members[i] for i in group.watch.tracked}


class Mapping:
    """Memory of the kernel's own, which can be replaced where it is."""

    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_longlong,
    ]
    _libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    _libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def __init__(self, size: int, first: int = 0, flags: int = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, file: int = -1):
        fixed = 0x10 if first else 0  # MAP_FIXED
        self.size = size
        self.first = self._libc.mmap(first or None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags | fixed, file, 0)
        assert self.first not in (None, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())

    def tensor(self) -> torch.Tensor:
        return torch.frombuffer((ctypes.c_char * self.size).from_address(self.first), dtype=torch.float32)

    def discard(self, first: int, size: int) -> None:
        assert self._libc.madvise(self.first + first, size, mmap.MADV_DONTNEED) == 0

    def free(self) -> None:
        assert self._libc.munmap(self.first, self.size) == 0


TRACKED = pytest.mark.skipif(not is_available(), reason=str(why_not_tracked()))


def begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of this process is forgotten until the end of the test."""
    monkeypatch.setattr(written_pages, "_process", _Process())


def memset(weight: torch.Tensor, at: int) -> None:
    ctypes.memset(weight.data_ptr() + at * 4, 0x41, 4)


def by_readv(weight: torch.Tensor, at: int) -> None:
    """The kernel writes."""
    out, into = os.pipe()
    os.write(into, np.float32(3.5).tobytes())
    assert os.readv(out, [memoryview(weight.numpy())[at : at + 1].cast("B")]) == 4
    os.close(out)
    os.close(into)


def in_child(work: Callable[[], None], fork: Callable[[], int] = os.fork) -> None:
    """Run in a forked process; AssertionError if it raises there."""
    child = fork()
    if child == 0:
        status = 1
        try:
            torch.set_num_threads(1)  # OpenMP's threads are the parent's: a parallel region would wait for them forever
            work()
            status = 0
        except BaseException as error:  # nothing of this process may go on there
            os.write(2, repr(error).encode())
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
