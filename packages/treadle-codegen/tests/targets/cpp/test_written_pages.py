"""Whoever writes to a weight, however and when: the values that are kept of it are those of its elements as they are now."""

from __future__ import annotations

import ctypes
import errno
import itertools
import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from aten_capture import capture
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from kept_values import LARGE, PAGE, TRACKED, Kept, Mapping, begin_anew, by_readv, in_child, memset

from treadle_codegen import compile_graph
from treadle_codegen.targets.cpp import written_pages


def refuse() -> int:
    raise OSError(errno.EPERM, "nobody may track in this test")


@pytest.fixture(params=[pytest.param("tracked", marks=TRACKED), "checksum"])
def tracking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With the kernel's help, and without."""
    if request.param == "checksum":
        begin_anew(monkeypatch)
        monkeypatch.setattr(written_pages, "_open_userfaultfd", refuse)
    return request.param == "tracked"


def through_data(weight: torch.Tensor, at: int) -> None:
    weight.data[at] = 12.5


def through_numpy(weight: torch.Tensor, at: int) -> None:
    weight.numpy()[at] = 12.25


def through_dlpack(weight: torch.Tensor, at: int) -> None:
    torch.from_dlpack(weight)[at] = 12.75


def from_file(weight: torch.Tensor, at: int) -> None:
    with open("/dev/urandom", "rb", buffering=0) as file:
        assert file.readinto(memoryview(weight.numpy())[at : at + 1].cast("B")) == 4
    weight.numpy()[at] = np.nan_to_num(weight.numpy()[at])


def by_a_thread(weight: torch.Tensor, at: int) -> None:
    thread = threading.Thread(target=memset, args=(weight, at))
    thread.start()
    thread.join()


def through_proc(weight: torch.Tensor, at: int) -> None:
    """As a debugger does, not through this process's page table."""
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(weight.data_ptr() + 4 * at)
        memory.write(np.float32(9).tobytes())


WAYS = [memset, through_data, through_numpy, through_dlpack, by_readv, from_file, by_a_thread, through_proc]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [1, 3, 1000, LARGE, LARGE + 1, 700_001])
def test_a_write_to_any_element_is_seen(tracking: bool, size: int, way: Callable[..., None]) -> None:
    weight = torch.randn(size)
    kept = Kept(weight)
    kept.settle()
    assert kept.watched == ({0} if tracking and size >= LARGE else set())
    version = weight._version
    for at in sorted({0, 1 % size, size // 3, size // 2, size - 1}):
        way(weight, at)
        kept.check()
    if way is not through_dlpack:
        assert weight._version == version
    runs = kept.runs
    kept.check()
    kept.check()
    assert kept.runs == runs


@pytest.mark.parametrize("first", [1, 7, PAGE // 4, PAGE // 4 + 1])
def test_views_of_one_storage_are_watched_each(tracking: bool, first: int) -> None:
    storage = torch.randn(3 * LARGE)
    views = storage[first : first + LARGE], storage[LARGE:].view(2, -1).t(), storage[5:-3:2]
    kept = Kept(*views)
    kept.settle()
    assert len(kept.watched) == (3 if tracking else 0)
    for at in (0, first, first + LARGE - 1, LARGE, 2 * LARGE + 17, 3 * LARGE - 4, 3 * LARGE - 1):
        memset(storage, at)
        kept.check()


def test_what_is_not_written_is_not_read(tracking: bool) -> None:
    kept = Kept(torch.randn(LARGE), torch.randn(3))
    kept.settle()
    group = kept.sample._group
    sums: list[int] = []
    of = group._inside.of
    group._inside.of = lambda k: sums.append(k) or of(k)
    for _ in range(5):
        kept.check()
    assert not sums and kept.runs == 2
    kept.weights[0].data.copy_(kept.weights[0].clone())  # the same bits
    kept.check()
    assert sums == [0] * tracking and kept.runs == 2


def test_two_prologues_of_one_weight_see_every_write_in_any_order(tracking: bool) -> None:
    weight = torch.randn(LARGE)
    graphs = Kept(weight), Kept(torch.randn(5), weight[3:])
    for graph in graphs:
        graph.settle()
    for k, order in enumerate(itertools.product((0, 1), repeat=4)):
        memset(weight, 5 + k * 2000)
        weight.numpy()[5 + k * 2000] += k
        for g in order:
            graphs[g].check()
    for graph in graphs:
        graph.check()


def test_two_compiled_graphs_of_one_weight(tracking: bool) -> None:
    x, weight = torch.randn(1), torch.randn(300, 400)
    first = compile_graph(capture(lambda x, w: x + (w * 2), [x, weight], static=(1,)), [x, weight])
    second = compile_graph(capture(lambda x, w: x - (w * 3), [x, weight], static=(1,)), [x, weight])
    for k in (0, 0, 0, 0, 0, 1, 2, 3):
        assert torch.equal(first(x, weight)[0], x + weight * 2)
        if k % 2:
            assert torch.equal(second(x, weight)[0], x - weight * 3)
        if k:
            weight.numpy()[k * 70, 5] = k


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("fork", [os.fork, ctypes.PyDLL(None).fork], ids=["Python's", "C's"])
def test_forked_processes_see_their_own_writes(tracking: bool, fork: Callable[[], int]) -> None:
    weight = torch.randn(LARGE)
    kept = Kept(weight)
    kept.settle()
    runs = kept.runs

    def child() -> None:
        kept.settle()
        for at in (5, 3000, LARGE - 1):
            memset(weight, at)
            kept.check()
        weight.data[7000] = 2
        other = Kept(weight)
        other.settle()
        assert other.watched == kept.watched
        if fork is os.fork:
            assert other.watched == ({0} if tracking else set())

    in_child(child, fork)
    kept.check()
    assert kept.runs == runs
    weight.data[100] = 5
    in_child(kept.settle, fork)
    kept.check()
    assert kept.runs == runs + 1 and kept.watched == ({0} if tracking else set())


@TRACKED
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_that_is_forked_while_the_lock_is_held_goes_on() -> None:
    kept = Kept(torch.randn(LARGE))
    kept.settle()
    tracker = written_pages._tracker()
    assert tracker is not None
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with tracker.lock, kept.sample._lock, written_pages._process.lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    in_child(kept.settle)
    done.set()
    thread.join()
    kept.check()


def test_memory_that_another_process_writes_to(tracking: bool) -> None:
    weight = torch.zeros(LARGE).share_memory_()
    memory = Mapping(4 * LARGE, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    kept = Kept(weight, memory.tensor())
    kept.settle()
    assert not kept.watched
    for shared in kept.weights:
        in_child(lambda shared=shared: memset(shared, 6000))
        assert shared[6000] != 0
        kept.check()


@pytest.mark.parametrize("mode", ["c", "r+"])
def test_a_file_that_is_written(tracking: bool, tmp_path: Path, mode: Any) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(4 * LARGE))
    by_numpy = torch.from_numpy(np.memmap(path, dtype=np.float32, mode=mode))
    by_torch = torch.from_file(str(path), shared=mode == "r+", size=LARGE, dtype=torch.float32)
    kept = Kept(by_numpy, by_torch)
    kept.settle()
    assert not kept.watched
    for at in (0, 5000, LARGE - 1):
        with path.open("r+b", buffering=0) as file:
            file.seek(4 * at)
            file.write(np.float32(7).tobytes())
        assert by_torch[at] == 7
        kept.check()
        memset(by_numpy, at)
        kept.check()


@pytest.mark.parametrize("new", ["anonymous", "shared", "file"])
def test_other_memory_at_an_equal_address(tracking: bool, tmp_path: Path, new: str) -> None:
    memory = Mapping(8 * LARGE)
    kept = Kept(memory.tensor()[:LARGE], memory.tensor()[LARGE:])
    kept.weights[0].data.fill_(3)
    kept.settle()
    memory.free()
    path = tmp_path / "new"
    path.write_bytes(bytes(4 * LARGE))
    with path.open("r+b") as file:
        flags = mmap.MAP_SHARED if new != "anonymous" else mmap.MAP_PRIVATE
        rest = {"file": {"file": file.fileno()}}.get(new, {})
        flags |= 0 if new == "file" else mmap.MAP_ANONYMOUS
        Mapping(4 * LARGE, memory.first, flags, **rest)
        Mapping(4 * LARGE, memory.first + 4 * LARGE)
    kept.check()
    if tracking:
        assert kept.watched == ({0, 1} if new == "anonymous" else {1})
    for at in (0, 100, LARGE - 1):
        in_child(lambda: memset(kept.weights[0], at))
        kept.check()
        memset(kept.weights[0], at)
        memset(kept.weights[1], at)
        kept.check()
    memory.free()


def test_memory_that_is_freed_and_given_out_again(tracking: bool) -> None:
    """By an allocator that keeps it for the next tensor, and by PyTorch's, which may."""
    memory = Mapping(4 * LARGE)
    kept, by_torch = Kept(memory.tensor()), Kept(torch.zeros(LARGE))
    for k in range(20):
        kept.settle()
        by_torch.settle()
        kept.weights = by_torch.weights = ()
        kept.weights = (memory.tensor(),)
        by_torch.weights = (torch.full((LARGE,), float(k)) if k % 2 else torch.zeros(LARGE),)
        kept.weights[0].numpy()[k * 500 : k * 500 + 3] = k
        assert kept.weights[0]._version == 0
        kept.check()
        by_torch.check()
    memory.free()


@pytest.mark.parametrize("size", [PAGE, 4 << 20])
def test_memory_that_is_given_back_reads_as_zeros(tracking: bool, size: int) -> None:
    """With a page table of its own, of which nothing is left, and without."""
    memory = Mapping(16 << 20)
    weight = memory.tensor()
    weight.data.fill_(3)
    kept = Kept(weight)
    kept.settle()
    for _ in range(2):
        memory.discard(4 << 20, size)
        kept.check()
        assert weight[1 << 20] == 0
        weight.data[1 << 20] = 8
        kept.check()
    memory.free()


def test_writers_and_callers_in_several_threads(tracking: bool) -> None:
    weights = [torch.zeros(LARGE) for _ in range(3)]
    graphs = [Kept(*weights), Kept(weights[1]), Kept(*weights[1:])]
    errors: list[BaseException] = []
    for graph in graphs[:2]:
        graph.settle()

    def call(graph: Kept, writes: bool) -> None:
        generator = np.random.default_rng(graph.runs)
        try:
            for _ in range(60):
                if writes:
                    memset(weights[int(generator.integers(3))], int(generator.integers(LARGE)))
                graph.prologue(graph.weights)
        except BaseException as error:
            errors.append(error)

    for _ in range(3):
        threads = [threading.Thread(target=call, args=(graph, k % 2 == 0)) for k, graph in enumerate(graphs * 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        for graph in graphs:
            graph.check()


SIZES = (3, 2 * PAGE // 4, LARGE, LARGE + 11)


def any_sequence(data: st.DataObject) -> None:
    weights = [torch.zeros(size) for size in SIZES]
    storage = torch.zeros(LARGE + 1000)
    weights.append(storage[data.draw(st.integers(0, 900)) :])
    graphs = [Kept(*weights), Kept(*weights[1:4])]
    for _ in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from("write write write equal call call settle settle free zeros".split()))
        k = data.draw(st.integers(0, len(weights) - 1))
        if action in ("write", "equal"):
            at = data.draw(st.integers(0, len(weights[k]) - 1))
            bits = weights[k].numpy()[at : at + data.draw(st.sampled_from((1, 9000)))]
            bits[:] = bits.copy() if action == "equal" else data.draw(st.integers(0, 3))
        elif action == "call":
            graphs[data.draw(st.integers(0, 1))].check()
        elif action == "settle":
            graphs[k % 2].settle()
        elif k < 4:
            weights[k] = torch.zeros(1)
            for graph in graphs:
                graph.weights = ()
            weights[k] = torch.empty(SIZES[k]) if action == "free" else torch.zeros(SIZES[k])
            torch.nan_to_num_(weights[k].data)
            graphs[0].weights, graphs[1].weights = tuple(weights), tuple(weights[1:4])
    for graph in graphs:
        graph.check()


def test_any_sequence_of_writes_calls_and_frees(tracking: bool) -> None:
    settings(max_examples=60, deadline=None)(given(st.data())(any_sequence))()


@TRACKED
def test_these_tests_see_a_tracker_that_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(LARGE)
    kept = Kept(weight)
    kept.settle()
    monkeypatch.setattr(written_pages._Tracker, "find_written", lambda self, ranges: None)
    memset(weight, 5000)
    with pytest.raises(AssertionError):
        kept.check()
    search = settings(max_examples=1000, deadline=None, database=None, phases=[Phase.generate])
    with pytest.raises((AssertionError, Flaky)):  # where memory lies differs from one try to the next
        search(given(st.data())(any_sequence))()
    monkeypatch.undo()
    kept.check()


@TRACKED
def test_these_tests_see_a_tracker_that_tells_only_the_one_that_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    find = written_pages._Tracker.find_written

    def alone(self: Any, ranges: Any) -> None:
        watched, self.watched = self.watched, {0: ranges}
        find(self, ranges)
        self.watched = watched

    monkeypatch.setattr(written_pages._Tracker, "find_written", alone)
    with pytest.raises(AssertionError):
        test_two_prologues_of_one_weight_see_every_write_in_any_order(True)
