"""The recorder of CUDA devices against a `torch.cuda` of these tests, which remembers the order of calls."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from treadle_codegen.targets.triton import cuda_graphs as module
from treadle_codegen.targets.triton.cuda_graphs import CudaGraphs, cuda_graphs

CALLS: list[str] = []
CUDA: list[Cuda] = []


class Stream:
    def __init__(self, name: str) -> None:
        self.name = name

    def wait_event(self, event: Event) -> None:
        CALLS.append(f"{self.name} waits for event on {event.stream}")


class Event:
    stream = ""

    def record(self, stream: Stream) -> None:
        self.stream = stream.name
        CALLS.append(f"event on {stream.name}")


class Place:
    """A tensor."""

    def zero_(self) -> None:
        CALLS.append("zero")

    def record_stream(self, stream: Stream) -> None:
        CALLS.append(f"in use on {stream.name}")


class Graph:
    fails = ""
    alive: weakref.WeakSet[Graph] = weakref.WeakSet()

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        CALLS.append(f"begin in pool {pool}, {capture_error_mode}")
        if Graph.fails == "begin":
            raise RuntimeError("begin")
        if pool in CUDA[-1].used_pools and pool not in [graph.pool for graph in Graph.alive]:
            raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")  # c10/cuda/CUDACachingAllocator.cpp
        CUDA[-1].used_pools.add(pool)
        self.pool = pool
        Graph.alive.add(self)

    def capture_end(self) -> None:
        CALLS.append("end")
        if Graph.fails == "end":
            if not CUDA[-1].stays_stuck:
                Graph.fails = ""
            CUDA[-1].generator.stuck = True
            raise RuntimeError("operation failed due to a previous error during capture")

        CUDA[-1].generator.stuck = False

    def replay(self) -> None:
        CALLS.append("replay")


class Generator:
    def __init__(self) -> None:
        self.stuck = False

    def get_state(self) -> str:
        return "state"

    def set_state(self, state: str) -> None:
        CALLS.append(f"set {state}")

    def graphsafe_get_state(self) -> Generator:
        return self

    def graphsafe_set_state(self, other: Generator) -> None:
        CALLS.append("new generator state")
        self.stuck = False


class Cuda:
    """The part of `torch.cuda` that the recorder uses; `current` is the current stream."""

    def __init__(self) -> None:
        self.current = Stream("main")
        self.pools = 0
        self.used_pools: set[object] = set()
        self.stays_stuck = False
        self.generator = Generator()
        self.default_generators = [self.generator]
        self.CUDAGraph, self.Event = Graph, Event

    def Stream(self, device: torch.device) -> Stream:  # noqa: N802
        return Stream("side")

    def graph_pool_handle(self) -> int:
        self.pools += 1
        return self.pools

    def current_stream(self, device: torch.device) -> Stream:
        return self.current

    def current_device(self) -> int:
        return 0

    def is_current_stream_capturing(self) -> bool:
        return False

    def synchronize(self, device: torch.device) -> None:
        CALLS.append("synchronize")

    @contextlib.contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    made = Cuda()
    CUDA[:] = [made]

    def rand(*size: int, device: torch.device) -> None:
        if made.generator.stuck:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")

    names: dict[str, Any] = {
        "cuda": made,
        "rand": rand,
        "Generator": lambda device: Generator(),
        "device": torch.device,
        "empty": lambda *size, device: Place(),
        "_C": SimpleNamespace(_cuda_endAllocateToPool=lambda index, pool: CALLS.append(f"leave pool {pool}")),
    }
    monkeypatch.setattr(module, "torch", SimpleNamespace(**names))
    monkeypatch.setattr(Graph, "fails", "")
    module._graphs_of.cache_clear()
    CALLS.clear()
    yield made
    module._graphs_of.cache_clear()


def recorder() -> CudaGraphs:
    made = cuda_graphs(torch.device("cuda:0"))
    assert made is not None
    return made


def test_one_recorder_per_device(cuda: Cuda) -> None:
    assert recorder() is recorder() is cuda_graphs(torch.device("cuda"))
    assert cuda_graphs(torch.device("cpu")) is None


def test_work_is_recorded_on_a_stream_of_its_own_and_in_one_pool(cuda: Cuda) -> None:
    for _ in range(2):
        replay = recorder().record(lambda: CALLS.append(f"work on {cuda.current.name}"))
    replay()
    one = ["begin in pool 1, thread_local", "work on side", "end"]
    assert [*one, *one, "replay"] == CALLS
    assert cuda.current.name == "main"


def test_when_all_recordings_are_gone_work_is_recorded_in_a_new_pool(cuda: Cuda) -> None:
    first = recorder().record(lambda: None)
    second = recorder().record(lambda: None)
    del first, second
    replay = recorder().record(lambda: None)
    replay()
    begins = [call for call in CALLS if call.startswith("begin")]
    assert begins == [f"begin in pool {pool}, thread_local" for pool in (1, 1, 2)]


def test_replays_on_one_stream_need_no_events(cuda: Cuda) -> None:
    for _ in range(3):
        with recorder().in_order():
            CALLS.append("replay")
    assert CALLS == ["replay"] * 3


def test_replays_on_several_streams_wait_for_each_other(cuda: Cuda) -> None:
    with recorder().in_order():
        CALLS.append("replay on main")
    cuda.current = Stream("other")
    with recorder().in_order():
        CALLS.append("replay on other")
    with recorder().in_order():
        CALLS.append("again")
    cuda.current = Stream("third")
    with recorder().in_order():
        CALLS.append("replay on third")
    assert CALLS == [
        "replay on main",
        "synchronize",  # no event tells the end of the first replay
        "replay on other",
        "event on other",
        "again",
        "event on other",
        "third waits for event on other",
        "replay on third",
        "event on third",
    ]


@pytest.mark.parametrize("where", ["begin", "end", "work"])
def test_a_recording_that_fails_leaves_nothing_behind(cuda: Cuda, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def work() -> None:
        if where == "work":
            raise RuntimeError("not permitted")

    monkeypatch.setattr(Graph, "fails", where)
    with pytest.raises(RuntimeError):
        recorder().record(work)
    assert "leave pool 1" in CALLS and CALLS[-1] == "set state"
    assert "new generator state" not in CALLS and not recorder().is_recording()
    monkeypatch.setattr(Graph, "fails", "")
    CALLS.clear()
    recorder().record(lambda: None)
    assert CALLS[0] == "begin in pool 3, thread_local"  # the second one was for bringing the generator back


def test_after_a_failure_that_spoils_the_generator_for_good_nothing_is_recorded(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda.stays_stuck = True
    monkeypatch.setattr(Graph, "fails", "end")
    with pytest.raises(RuntimeError):
        recorder().record(lambda: None)
    assert CALLS[-2:] == ["new generator state", "set state"]
    assert recorder().is_recording()  # so that graphs run as always


def test_memory_that_is_given_up_waits_for_the_last_replay(cuda: Cuda) -> None:
    tensors: list[Any] = [Place()]
    with recorder().in_order():
        pass
    recorder().release(tensors)
    cuda.current = Stream("other")
    with recorder().in_order():
        pass
    CALLS.clear()
    recorder().release(tensors)
    assert CALLS == ["in use on other"]
