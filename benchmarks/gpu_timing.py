"""Seconds of work on a device, for `benchmarks/gpu.py`: CUDA events on a GPU, the clock on the CPU (to try the benchmarks)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

Call = Callable[[int], object]  # takes the number of the call, which chooses among rotated inputs

_SAMPLES = 9
_SECONDS_PER_FIGURE = 0.5
_WARM_UPS = 5
_HEAD_START = 0.002  # seconds that the device is kept busy while the host queues calls


class Clock:
    """Measures calls on one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._cycles_per_second = self._measure_sleep() if device.type == "cuda" else 0.0

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _measure_sleep(self) -> float:
        torch.cuda._sleep(1000)
        cycles = 10_000_000
        return cycles / self._events(lambda _: torch.cuda._sleep(cycles), 1)

    def _events(self, call: Call, count: int, head_start: float = 0.0) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if head_start:
            torch.cuda._sleep(int(head_start * self._cycles_per_second))
        start.record()
        for k in range(count):
            call(k)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    def wall(self, call: Call) -> float:
        """Median seconds of one call until its results are there, from an idle device: what a user waits."""
        for k in range(_WARM_UPS):
            call(k)
        self.synchronize()
        samples: list[float] = []
        end = time.perf_counter() + _SECONDS_PER_FIGURE
        while len(samples) < _SAMPLES or time.perf_counter() < end:
            start = time.perf_counter()
            call(len(samples))
            self.synchronize()
            samples.append(time.perf_counter() - start)
        return statistics.median(samples)

    def host(self, call: Call, calls: int = 200) -> float:
        """Seconds per call of many calls that follow each other without waiting: launch overhead, if the work is small."""
        for k in range(_WARM_UPS):
            call(k)
        samples = []
        for _ in range(_SAMPLES):
            self.synchronize()
            start = time.perf_counter()
            for k in range(calls):
                call(k)
            self.synchronize()
            samples.append((time.perf_counter() - start) / calls)
        return statistics.median(samples)

    def device_time(self, call: Call) -> float:
        """Median seconds of one call on the device, launches hidden: the calls queue up behind a kernel that sleeps."""
        if self.device.type != "cuda":
            return self.wall(call)
        for k in range(_WARM_UPS):
            call(k)
        self.synchronize()
        once = time.perf_counter()
        call(0)
        host = time.perf_counter() - once
        self.synchronize()
        single = self._events(call, 1)
        count = max(2, min(40, int(_SECONDS_PER_FIGURE / _SAMPLES / max(single, 1e-6))))
        head_start = min(_HEAD_START + 1.5 * count * host, 0.1)
        return statistics.median(self._events(call, count, head_start) / count for _ in range(_SAMPLES))
