"""The `Recorder` of a CUDA device: CUDA graphs of one memory pool.

Graphs share what they allocate and release while they are recorded, so no two of them may run at the same time, and none
may leave anything there for later. Replays are therefore ordered across streams, and a graph's lasting memory is made
outside (`host.recording`). When all graphs of a pool are gone, the next ones get a new pool.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch


class CudaGraphs:
    """Records and replays work on one device."""

    def __init__(self, device: torch.device) -> None:
        self.lock = threading.RLock()
        self._device = device
        self._is_broken = False
        self._pool = (0, 0)
        self._recorded: weakref.WeakSet[torch.cuda.CUDAGraph] = (
            weakref.WeakSet()
        )  # into the pool; none before there is one
        self._side = torch.cuda.Stream(device)
        self._stream: torch.cuda.Stream | None = None  # of the last replay
        self._ended: torch.cuda.Event | None = None  # the last replay, once replays were on several streams

    def is_recording(self) -> bool:
        return self._is_broken or torch.cuda.is_current_stream_capturing()

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        # PyTorch refuses a pool that graphs have used and none uses any more. Held here, they cannot go before this one uses it.
        others = list(self._recorded)
        if not others:
            self._pool = torch.cuda.graph_pool_handle()
        with torch.cuda.device(self._device), torch.cuda.stream(self._side):
            try:
                _captured(graph, self._pool, work)
            except BaseException:
                self._after_failure()
                raise
        self._recorded.add(graph)
        return graph.replay

    def _after_failure(self) -> None:
        """Undo what a recording that failed leaves behind: `capture_end` raises before it has ended everything.

        Then the allocator still takes the pool for one that is recorded into, and the generator refuses to draw. A recording
        that succeeds brings the generator back. If that fails, too, it gets a new state, and nothing is recorded or replayed
        any more on this device: recordings made before would advance the old state.
        """
        index = self._device.index or 0
        with contextlib.suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(index, self._pool)
        self._recorded = weakref.WeakSet()  # what is recorded next goes into another pool
        generator = torch.cuda.default_generators[index]
        state = generator.get_state()
        place = torch.empty(1, device=self._device)
        with contextlib.suppress(RuntimeError):
            _captured(torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle(), place.zero_)
        try:
            torch.rand(1, device=self._device)
        except RuntimeError:
            self._is_broken = True
            fresh = torch.Generator(self._device)
            generator.graphsafe_set_state(fresh.graphsafe_get_state())
        generator.set_state(state)

    def release(self, tensors: Iterable[torch.Tensor]) -> None:
        if self._ended is not None and self._stream is not None:  # else the allocator knows the only stream
            for tensor in tensors:
                tensor.record_stream(self._stream)

    @contextmanager
    def in_order(self) -> Iterator[None]:
        with torch.cuda.device(self._device):
            stream = torch.cuda.current_stream(self._device)
            if self._stream is not None and stream != self._stream:
                if self._ended is None:  # its end was not recorded, and its stream may be gone
                    torch.cuda.synchronize(self._device)
                    self._ended = torch.cuda.Event()
                else:
                    stream.wait_event(self._ended)
            self._stream = stream
            try:
                yield
            finally:
                if self._ended is not None:
                    self._ended.record(stream)


def _captured(graph: torch.cuda.CUDAGraph, pool: tuple[int, int], work: Callable[[], object]) -> None:
    """Record `work` on the current stream. Other threads may go on: only what this one does would disturb the recording."""
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        work()
    finally:
        graph.capture_end()


@functools.lru_cache(maxsize=64)
def _graphs_of(index: int) -> CudaGraphs:
    return CudaGraphs(torch.device("cuda", index))


def cuda_graphs(device: torch.device) -> CudaGraphs | None:
    """The recorder of a device, the same one each time; None for a CPU."""
    if device.type != "cuda":
        return None
    return _graphs_of(torch.cuda.current_device() if device.index is None else device.index)
