"""Times of kernels on the processor, for autotuning."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from treadle_codegen.targets.cpp.build import find_compiler
from treadle_codegen.targets.cpp.processor import processor_line

_SAMPLES = 9
_LEAST_SECONDS = 1e-3  # of one sample; shorter runs are repeated
_MOST_SECONDS = 0.5  # of all samples of a long run


class CpuClock:
    """Measures with caches as the runs before left them. What disturbs a run makes it longer, never shorter: the shortest sample counts."""

    noise = 0.03  # share of its time by which an equal kernel may seem faster

    def __init__(self, device: torch.device) -> None:
        pass

    @property
    def identity(self) -> str:
        name = processor_line("model name")  # the same instruction sets may come with other caches
        return repr((name, torch.__version__, torch.get_num_threads(), find_compiler().identity))

    def seconds(self, run: Callable[[], Any], label: str) -> float:
        """The shortest of several samples."""
        run()
        once = _timed(run, 1)
        repeats = max(1, int(_LEAST_SECONDS / max(once, 1e-7)))
        samples = max(3, min(_SAMPLES, int(_MOST_SECONDS / max(once * repeats, 1e-7))))
        return min(_timed(run, repeats) for _ in range(samples))


def _timed(run: Callable[[], Any], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats
