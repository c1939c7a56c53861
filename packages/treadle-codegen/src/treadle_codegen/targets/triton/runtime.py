"""What the target asks of CUDA at run time: one narrow protocol. Tests put a fake in its place that checks the order of calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from treadle_codegen.errors import CodegenError, CodegenUnavailable
from treadle_codegen.options import CodegenOptions
from treadle_codegen.targets.triton.launcher import Launcher, LoadedKernel
from treadle_codegen.targets.triton.offline import Binary
from treadle_codegen.targets.triton.unit import Launch


class LaunchableSegment(Protocol):
    """Launches that are ready to go."""

    @property
    def address(self) -> int:
        """What `Runtime.launch` takes first."""
        ...

    @property
    def failed(self) -> str:
        """The kernel that the last error belongs to."""
        ...


class Runtime(Protocol):
    """CUDA, as far as this target uses it; devices are numbers."""

    @property
    def launch(self) -> Callable[[int, int, int], int]:
        """`launch(segment address, table address, stream)`: 0, or a result code of `launcher.py`."""
        ...

    @property
    def stream(self) -> Callable[[int], int]:
        """`stream(device)`: the handle of the device's current stream."""
        ...

    @property
    def most_arguments(self) -> int:
        """Most parameters of a kernel that can be launched."""
        ...

    def current_device(self) -> int:
        """The device of tensors that are made on "cuda"."""
        ...

    def capability(self, device: int) -> int:
        """The device's compute capability: 90 for 9.0."""
        ...

    def prepare(self) -> None:
        """Begin what takes time before the first kernel can be loaded, in another thread."""
        ...

    def load(self, device: int, binary: Binary, pointers: int) -> LoadedKernel:
        """Load a kernel whose first `pointers` parameters are pointers, once per device and process."""
        ...

    def segment(
        self, device: int, launches: Sequence[tuple[Launch, LoadedKernel]], alignment: int
    ) -> LaunchableSegment:
        """Prepare the launches of a segment, which refuses pointers that are no multiples of `alignment` bytes."""
        ...

    def text_of(self, result: int) -> str:
        """The driver's words for a result code."""
        ...


class CudaRuntime:
    """`Runtime` of this machine: PyTorch's streams and devices, and the launcher around the driver."""

    def __init__(self, options: CodegenOptions) -> None:
        if not torch.cuda.is_available() or torch.version.cuda is None:
            raise CodegenUnavailable("PyTorch finds no CUDA device")
        torch.cuda.init()  # kernels are loaded into PyTorch's contexts
        self._options = options
        self._lock = threading.Lock()
        self._built: Launcher | None = None
        self._loaded: dict[tuple[int, str], LoadedKernel] = {}
        self.stream: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
        self.current_device: Callable[[], int] = torch.cuda.current_device

    @property
    def _launcher(self) -> Launcher:
        """Built by whoever needs it first; others wait for that."""
        with self._lock:
            if self._built is None:
                self._built = Launcher(self._options)
            return self._built

    @property
    def launch(self) -> Callable[[int, int, int], int]:
        return self._launcher.launch

    @property
    def most_arguments(self) -> int:
        return self._launcher.most_arguments

    def capability(self, device: int) -> int:
        major, minor = torch.cuda.get_device_capability(device)
        return 10 * major + minor

    def prepare(self) -> None:
        if self._built is None:
            threading.Thread(target=self._try_launcher, name="treadle-launcher", daemon=True).start()

    def _try_launcher(self) -> None:
        try:
            _ = self._launcher
        except (CodegenError, OSError):
            pass  # whoever needs it meets the error again

    def load(self, device: int, binary: Binary, pointers: int) -> LoadedKernel:
        known = self._loaded.get((device, binary.key))
        return known or self._loaded.setdefault(
            (device, binary.key), self._launcher.load(device, binary.content, binary.facts, pointers)
        )

    def segment(
        self, device: int, launches: Sequence[tuple[Launch, LoadedKernel]], alignment: int
    ) -> LaunchableSegment:
        return self._launcher.segment(device, launches, alignment)

    def text_of(self, result: int) -> str:
        return self._launcher.text_of(result)


_lock = threading.Lock()
_runtimes: list[Runtime] = []


def runtime(options: CodegenOptions) -> Runtime:
    """The runtime of this process. Raises CodegenUnavailable without a CUDA device."""
    with _lock:
        if not _runtimes:
            _runtimes.append(CudaRuntime(options))
        return _runtimes[0]
