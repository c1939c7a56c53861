"""What the tracker of written pages does with its memory, with errors of the kernel, and with calls that come between."""

from __future__ import annotations

import ctypes
import errno
import gc
import itertools
import os
import platform
from pathlib import Path
from typing import Any

import pytest
import torch
from kept_values import LARGE, PAGE, TRACKED, Kept, Mapping, begin_anew, by_readv, in_child, memset

from treadle_codegen.targets.cpp import probe, written_pages
from treadle_codegen.targets.cpp.written_pages import Watch, is_available, why_not_tracked


@TRACKED
def test_weights_that_are_written_all_the_time_are_summed_until_they_are_left_alone() -> None:
    kept = Kept(torch.randn(LARGE), torch.randn(LARGE))
    for _ in range(1 + probe._FIRST_PATIENCE):
        kept.check()
        assert not kept.watched
    kept.check()
    assert kept.runs == 2
    for k in range(6):
        assert kept.watched == ({0, 1} if k < 4 else {1})
        memset(kept.weights[0], 4000)
        kept.weights[0].numpy()[5000] = k
        kept.check()
    runs = kept.runs
    for _ in range(probe._PATIENCE):
        assert kept.watched == {1}
        kept.check()
    assert kept.runs == runs
    kept.check()
    assert kept.watched == {0, 1} and kept.runs == runs
    for _ in range(8):  # with equal bits
        memset(kept.weights[1], 4000)
        kept.check()
    assert kept.watched == {0}
    memset(kept.weights[1], 6000)
    kept.check()


@TRACKED
def test_pages_are_released_when_nobody_watches_them() -> None:
    def is_registered(place: int) -> bool:
        inside = False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            head = line.split()[0]
            if "-" in head and not head.endswith(":"):
                first, end = (int(part, 16) for part in head.split("-"))
                inside = first <= place < end
            elif inside and head == "VmFlags:":
                return "uw" in line.split()  # proc_pid_smaps: userfaultfd write protection
        raise AssertionError("no mapping")

    memory = Mapping(20 * PAGE)
    watches = [
        Watch([(memory.first, memory.first + 10 * PAGE)]),
        Watch([(memory.first + 5 * PAGE, memory.first + 15 * PAGE)]),
    ]
    places = [memory.first + k * PAGE for k in (2, 7, 12, 17)]
    assert [is_registered(place) for place in places] == [True, True, True, False]
    other = Mapping(PAGE)
    del watches[0]
    gc.collect()
    Watch([(other.first, other.first + PAGE)])
    assert [is_registered(place) for place in places] == [False, True, True, False]
    assert watches[0].tracked == [0]
    watches[0].close()
    watches[0].close()
    assert not any(is_registered(place) for place in places)
    memory.free()
    other.free()


@TRACKED
def test_many_written_spans_are_all_told() -> None:
    pages = 3 * written_pages._SPANS_PER_SCAN
    memory = Mapping(2 * pages * PAGE)
    watch = Watch([(memory.first + k * PAGE, memory.first + (k + 1) * PAGE) for k in range(2 * pages)])
    assert watch.written() == list(range(2 * pages))
    torch.sum(memory.tensor())  # pages that are not there are told until somebody reads them
    watch.written()
    assert watch.written() is None
    for k in range(0, 2 * pages, 2):
        memory.tensor()[k * PAGE // 4 + 5] = 3
    assert watch.written() == list(range(0, 2 * pages, 2))
    assert watch.written() is None
    memory.free()


@TRACKED
def test_an_exception_between_a_scan_and_its_marks_hides_no_write(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(LARGE)
    graphs = Kept(weight), Kept(weight)
    for interrupted in (written_pages._Tracker, "_mark"), (probe._Sums, "of"):
        for graph in graphs:
            graph.settle()
        weight.numpy()[5000] += 1

        def interrupt(*args: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(*interrupted, interrupt)
        with pytest.raises(KeyboardInterrupt):
            graphs[0].check()
        monkeypatch.undo()
        for graph in graphs:
            graph.check()


@TRACKED
def test_a_call_that_comes_between_a_scan_and_its_marks_hides_no_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a signal handler's does, or a finalizer's."""
    weight = torch.randn(LARGE)
    graphs = Kept(weight), Kept(weight[5:])
    real = written_pages._Tracker._mark, probe._Sums.of
    for place, name in (written_pages._Tracker, "_mark"), (probe._Sums, "of"):
        for inner, outer in itertools.product(graphs, graphs):
            for graph in graphs:
                graph.settle()
            weight.numpy()[5000] += 1
            came: list[bool] = []

            def between(self: Any, *args: Any, was: Any = getattr(place, name), inner: Kept = inner) -> Any:
                if not came:
                    came.append(True)
                    inner.check()
                return was(self, *args)

            monkeypatch.setattr(place, name, between)
            outer.check()
            assert came
            monkeypatch.undo()
            assert real == (written_pages._Tracker._mark, probe._Sums.of)
            for graph in graphs:
                graph.check()


@TRACKED
@pytest.mark.parametrize("reason", [errno.ENOSYS, errno.EBADF, errno.ENOMEM])
def test_a_scan_that_fails_turns_tracking_off(monkeypatch: pytest.MonkeyPatch, reason: int) -> None:
    begin_anew(monkeypatch)
    memory = Mapping(4 * LARGE)
    kept = Kept(memory.tensor())
    kept.settle()
    assert kept.watched == {0}
    ioctl = written_pages.fcntl.ioctl

    def fail(descriptor: int, request: int, *rest: Any) -> int:
        if request == written_pages._SCAN:
            raise OSError(reason, os.strerror(reason))
        return ioctl(descriptor, request, *rest)

    monkeypatch.setattr(written_pages.fcntl, "ioctl", fail)
    for at in (5000, 6000, 3):
        memset(kept.weights[0], at)
        kept.check()
    assert not kept.watched
    assert why_not_tracked() == f"PAGEMAP_SCAN: {os.strerror(reason)}" and not is_available()
    memory.free()


@TRACKED
def test_memory_that_somebody_else_registered_is_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Mapping(8 * LARGE)
    first = Kept(memory.tensor()[:LARGE])
    first.settle()
    begin_anew(monkeypatch)  # a userfaultfd of its own
    second = Kept(memory.tensor()[:LARGE], memory.tensor()[LARGE + 3 * PAGE :])
    second.settle()
    assert second.watched == {1}
    for at in (3000, 4000):
        memset(second.weights[0], at)
        second.check()
    memory.free()


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("sys.platform", "darwin", "64-bit Linux only"),
        ("platform.machine", lambda: "riscv64", "number on riscv64 is unknown"),
        ("_API_VERSION", 0xAB, "it came with Linux 6.7"),
    ],
)
def test_why_not_tracked(monkeypatch: pytest.MonkeyPatch, name: str, value: Any, reason: str) -> None:
    if platform.machine() not in written_pages._SYSCALL_NUMBERS:
        pytest.skip(f"nothing is tracked on {platform.machine()}")
    if name == "_API_VERSION" and not is_available():
        pytest.skip(str(why_not_tracked()))
    begin_anew(monkeypatch)
    monkeypatch.setattr(f"{written_pages.__name__}.{name}", value)
    found = why_not_tracked()
    assert found is not None and reason in found and not is_available()
    assert Watch([(0, PAGE)]).written() is None


@TRACKED
@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes somebody else")
def test_ordinary_users_can_track() -> None:
    def as_nobody() -> None:
        os.setgid(65534)
        os.setuid(65534)
        assert (
            ctypes.CDLL(None).prctl(4, 1) == 0
        )  # PR_SET_DUMPABLE: its own /proc is closed to a process that has just changed its user
        assert why_not_tracked() is None
        weight = torch.randn(LARGE)
        kept = Kept(weight)
        kept.settle()
        for way in (memset, by_readv):
            way(weight, 5000)
            kept.check()
        assert kept.watched == {0}

    Kept(torch.zeros(3)).check()  # compiles the checksum
    in_child(as_nobody)
