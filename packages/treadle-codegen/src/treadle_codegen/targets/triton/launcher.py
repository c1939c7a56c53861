"""`launcher.cpp` from Python: the library is built once, and its structures are filled from parsed units."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from treadle_codegen.errors import CodegenUnavailable
from treadle_codegen.options import CodegenOptions
from treadle_codegen.targets.cpp.build import build_library
from treadle_codegen.targets.triton.unit import Launch

DRIVER_LIBRARY = "libcuda.so.1"
NO_DRIVER, UNALIGNED, GRID_TOO_LARGE = -1, -2, -3  # as in launcher.cpp
MOST_PROGRAMS = (2**31 - 1, 65535, 65535)  # CUDA C++ Programming Guide, compute capabilities: grid dimensions
_SOURCE = Path(__file__).with_name("launcher.cpp")
_ERROR_BYTES = 512


class _Dimension(ctypes.Structure):
    _fields_ = (("points", ctypes.c_int64), ("block", ctypes.c_int64), ("slot", ctypes.c_int64))


class _Launch(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p),
        ("slots", ctypes.POINTER(ctypes.c_int32)),
        ("arguments", ctypes.c_int32),
        ("hidden", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("shared", ctypes.c_int32),
        ("grid", _Dimension * 3),
        ("early", ctypes.c_int32),
        ("members", ctypes.c_int32),
        ("bytes", ctypes.POINTER(ctypes.c_int64)),
        ("written", ctypes.POINTER(ctypes.c_uint8)),
    )


class _Segment(ctypes.Structure):
    _fields_ = (
        ("context", ctypes.c_void_p),
        ("launches", ctypes.POINTER(_Launch)),
        ("pointers", ctypes.POINTER(ctypes.c_int32)),
        ("count", ctypes.c_int32),
        ("pointer_count", ctypes.c_int32),
        ("alignment", ctypes.c_int32),
        ("failed", ctypes.c_int32),
    )


class _Kernel(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p),
        ("registers", ctypes.c_int32),
        ("local_bytes", ctypes.c_int32),
        ("max_threads", ctypes.c_int32),
        ("max_shared", ctypes.c_int32),
    )


@dataclass(frozen=True, slots=True)
class LoadedKernel:
    """A kernel in a device's memory. `pointers`: how many of its arguments, from the first, are pointers; `hidden`: how many
    Triton adds behind them; `waits`: whether it waits for the kernel before it by itself (`begin_kernel` of the prelude)."""

    name: str
    function: int
    pointers: int
    hidden: int
    threads: int
    shared: int
    registers: int
    local_bytes: int
    waits: bool = False


class DriverError(torch.AcceleratorError):
    """An error of CUDA's driver, with its text. Launches are asynchronous: it may belong to earlier work."""


class Launcher:
    """The loaded library around CUDA's driver; `driver` is the name of the driver's library."""

    def __init__(self, options: CodegenOptions, driver: str = DRIVER_LIBRARY) -> None:
        library, _ = build_library(_SOURCE.read_text(), options)
        self._library = library
        library.treadle_open.argtypes = [ctypes.c_char_p]
        library.treadle_error.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int64]
        library.treadle_context.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_void_p)]
        library.treadle_load.argtypes = [
            *(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(_Kernel)),
        ]
        library.treadle_early.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_int)]
        # The interpreter's lock is released during a launch: the driver may wait for room in its queue.
        self.launch: Callable[[int, int, int], int] = library.treadle_launch
        library.treadle_launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        self.most_arguments: int = library.treadle_most_arguments()
        self._contexts: dict[int, int] = {}
        self._early: dict[int, bool] = {}
        result = library.treadle_open(driver.encode())
        if result != 0:
            raise CodegenUnavailable(f"CUDA's driver cannot be used: {self.text_of(result)}")

    def text_of(self, result: int) -> str:
        """The driver's words for a result."""
        text = ctypes.create_string_buffer(_ERROR_BYTES)
        self._library.treadle_error(result, text, _ERROR_BYTES)
        return text.value.decode(errors="replace")

    def _context(self, device: int) -> int:
        if device not in self._contexts:
            context = ctypes.c_void_p()
            self._check(self._library.treadle_context(device, ctypes.byref(context)))
            self._contexts[device] = context.value or 0
        return self._contexts[device]

    def _begins_early(self, device: int) -> bool:
        """Whether the device begins with a kernel before the one before it has ended."""
        if device not in self._early:
            early = ctypes.c_int()
            self._check(self._library.treadle_early(device, ctypes.byref(early)))
            self._early[device] = bool(early.value)
        return self._early[device]

    def _check(self, result: int) -> None:
        if result != 0:
            raise DriverError(f"CUDA error: {self.text_of(result)}")

    def load(self, device: int, binary: bytes, facts: Mapping[str, Any], pointers: int) -> LoadedKernel:
        """Load a kernel on a device. Raises CodegenUnavailable where it needs more than the device has, DriverError."""
        kernel, name, shared = _Kernel(), facts["name"], facts["shared"]
        threads = facts["num_warps"] * facts["warp_size"]
        self._check(
            self._library.treadle_load(
                device, self._context(device), binary, name.encode(), shared, ctypes.byref(kernel)
            )
        )
        if shared > kernel.max_shared:
            raise CodegenUnavailable(
                f"kernel {name} needs {shared} bytes of shared memory, device cuda:{device} has {kernel.max_shared}"
            )
        if threads > kernel.max_threads:
            raise CodegenUnavailable(
                f"kernel {name} needs {threads} threads, device cuda:{device} runs {kernel.max_threads} of it at once"
            )
        return LoadedKernel(
            name,
            kernel.function,
            pointers,
            len(facts["hidden_parameters"]),
            threads,
            shared,
            kernel.registers,
            kernel.local_bytes,
            bool(facts.get("waits")),
        )

    def segment(self, device: int, launches: Sequence[tuple[Launch, LoadedKernel]], alignment: int) -> Segment:
        """A segment for `launch`; it refuses tables whose pointers are no multiples of `alignment`."""
        return Segment(self._context(device), launches, alignment, early=self._begins_early(device))


class Segment:
    """The launches of one segment in the launcher's memory: `address` is what `Launcher.launch` takes first."""

    def __init__(
        self, context: int, launches: Sequence[tuple[Launch, LoadedKernel]], alignment: int, *, early: bool
    ) -> None:
        self._names = [kernel.name for _, kernel in launches]
        self._slots = [(ctypes.c_int32 * len(launch.slots))(*launch.slots) for launch, _ in launches]
        self._groups: list[Any] = []  # what the records point to
        self._launches = (_Launch * len(launches))()
        for record, slots, (launch, kernel) in zip(self._launches, self._slots, launches, strict=True):
            record.function, record.slots = kernel.function, ctypes.cast(slots, ctypes.POINTER(ctypes.c_int32))
            record.arguments, record.hidden = len(launch.slots), kernel.hidden
            record.threads, record.shared = kernel.threads, kernel.shared
            record.early = early and kernel.waits
            if launch.group is not None:
                count, record.members = len(launch.group.bytes), launch.group.members
                sizes = (ctypes.c_int64 * count)(*launch.group.bytes)
                written = (ctypes.c_uint8 * count)(*launch.group.written)
                record.bytes = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
                record.written = ctypes.cast(written, ctypes.POINTER(ctypes.c_uint8))
                self._groups += [sizes, written]
            for place in range(3):
                dimension = launch.grid[place] if place < len(launch.grid) else None
                record.grid[place].points = dimension.points if dimension else 1
                record.grid[place].block = dimension.block if dimension else 1
                record.grid[place].slot = (dimension.slot or 0) if dimension else 0
        pointers = sorted({slot for launch, kernel in launches for slot in launch.slots[: kernel.pointers]})
        self._pointers = (ctypes.c_int32 * len(pointers))(*pointers)
        self._record = _Segment(
            context,
            ctypes.cast(self._launches, ctypes.POINTER(_Launch)),
            ctypes.cast(self._pointers, ctypes.POINTER(ctypes.c_int32)),
            len(launches),
            len(pointers),
            alignment,
            0,
        )
        self.address = ctypes.addressof(self._record)

    @property
    def failed(self) -> str:
        """The kernel that the last error belongs to."""
        return self._names[self._record.failed]
