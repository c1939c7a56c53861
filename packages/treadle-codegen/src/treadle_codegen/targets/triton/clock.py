"""Times on a CUDA device, by its own events."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

from treadle_codegen.targets.triton.installation import triton_identity

_WARM_UPS, _RUNS = 3, 15
_CACHE_BYTES = 256 << 20  # written between runs: more than any second-level cache holds
_HEAD_START = 1 << 20  # cycles that the device waits, so that all launches are queued when the first kernel starts


class CudaClock:
    """Measures with cold caches, without the time that the host takes for launches."""

    noise = 0.0  # the device's own events measure it

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def identity(self) -> str:
        properties = torch.cuda.get_device_properties(self._device)
        parts = (properties.name, properties.major, properties.minor, properties.multi_processor_count)
        return repr((parts, torch.__version__, torch.version.cuda, triton_identity()))

    def seconds(self, run: Callable[[], Any], label: str) -> float:
        """The median of several runs."""
        with torch.cuda.device(self._device):
            for _ in range(_WARM_UPS):
                run()
            scratch = torch.empty(_CACHE_BYTES, dtype=torch.int8, device=self._device)
            torch.cuda.synchronize()
            pairs = [(_event(), _event()) for _ in range(_RUNS)]
            torch.cuda._sleep(_HEAD_START)
            for start, end in pairs:
                scratch.zero_()
                start.record()
                run()
                end.record()
            torch.cuda.synchronize()
        return statistics.median(start.elapsed_time(end) for start, end in pairs) / 1e3


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def allows_tf32() -> bool:
    """Whether PyTorch lets BLAS round factors of float32 to TF32."""
    try:
        return torch._C._get_cublas_allow_tf32()
    except RuntimeError:  # both of PyTorch's ways to set it were used
        return torch.backends.cuda.matmul.fp32_precision == "tf32"
