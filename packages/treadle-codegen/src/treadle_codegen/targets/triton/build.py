"""Turn the text of a unit into entry points: compile its kernels (`offline`), load them on the graph's device, launch them.

Kernels are compiled for pointers that are multiples of 16 bytes. The launcher refuses others, and the first time it does the
segment's kernels are compiled once more without that promise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch

from treadle_codegen.errors import CodegenUnavailable
from treadle_codegen.options import CodegenOptions
from treadle_codegen.targets.triton.launcher import GRID_TOO_LARGE, MOST_PROGRAMS, UNALIGNED, DriverError, LoadedKernel
from treadle_codegen.targets.triton.offline import Architecture, Binary, compile_kernels
from treadle_codegen.targets.triton.runtime import LaunchableSegment, Runtime, runtime
from treadle_codegen.targets.triton.unit import Launch, Unit, parse_unit

ALIGNMENT = 16  # bytes: what one thread loads at once
_POINTER_TYPES = frozenset(("u64", "b64"))

Entry = Callable[[int], None]


def load_unit(
    source: str,
    names: Sequence[str],
    options: CodegenOptions,
    background: bool = False,
    device: torch.device | None = None,
) -> tuple[dict[str, Entry], bool]:
    """Build and load a unit for `device`, by default the current CUDA device: (entry point of each segment in `names`,
    whether all kernels came from the cache).

    An entry point takes the address of a table, launches its segment on the device's current stream and returns at once. It
    raises DriverError with the driver's text, and RuntimeError for a grid that is larger than CUDA takes.

    Raises CodegenUnavailable without Triton, C++ compiler, driver or device, for a kernel that Triton refuses
    (KernelRefused), and for one that the device cannot run; UnitError for a unit that breaks its contract.
    """
    unit = parse_unit(source)
    cuda = runtime(options)
    number = cuda.current_device() if device is None or device.index is None else device.index
    unit = Unit(unit.kernels, {name: unit.segments[name] for name in names})
    loader = Loader(unit, cuda, number, options)
    kernels, cached = loader.load(list(names), background=background)
    return {name: loader.entry(name, kernels) for name in names}, cached


class Loader:
    """Makes entry points of one unit on one device."""

    def __init__(self, unit: Unit, cuda: Runtime, device: int, options: CodegenOptions) -> None:
        self._unit, self._cuda, self._device, self._options = unit, cuda, device, options
        self._lock = threading.Lock()
        self._unaligned: dict[str, LaunchableSegment] = {}

    def load(
        self, segments: Sequence[str], *, aligned: bool = True, background: bool = False
    ) -> tuple[dict[str, LoadedKernel], bool]:
        """The kernels of these segments on the device, by name, and whether all came from the cache."""
        names = dict.fromkeys(launch.kernel for segment in segments for launch in self._unit.segments[segment])
        wanted = [self._unit.kernels[name] for name in names]
        architecture = Architecture.cuda(self._cuda.capability(self._device))
        self._cuda.prepare()
        binaries = compile_kernels(wanted, architecture, self._options, aligned=aligned, background=background)
        loaded = {}
        for kernel in wanted:
            binary = binaries[kernel.name]
            self._require_launchable(binary, len(kernel.signature))
            pointers = sum(type_.startswith("*") for _, type_ in kernel.signature)
            loaded[kernel.name] = self._cuda.load(self._device, binary, pointers)
        return loaded, all(binary.cached for binary in binaries.values())

    def _require_launchable(self, binary: Binary, arguments: int) -> None:
        name, facts = binary.facts["name"], binary.facts
        if arguments + len(facts["hidden_parameters"]) > self._cuda.most_arguments:
            raise CodegenUnavailable(f"kernel {name} takes {arguments} arguments, more than can be launched")
        if facts.get("global_scratch_size") or facts.get("profile_scratch_size"):
            raise CodegenUnavailable(f"kernel {name} needs scratch memory, which launches do not provide")
        if facts["num_ctas"] != 1 or not _POINTER_TYPES.issuperset(facts["hidden_parameters"]):
            raise CodegenUnavailable(f"kernel {name} is launched in a way that Treadle does not know")

    def entry(self, name: str, kernels: dict[str, LoadedKernel]) -> Entry:
        """The entry point of a segment: one native call."""
        launches = self._unit.segments[name]
        for launch in launches:
            _require_grid(launch)
        segment = self._segment(name, kernels, ALIGNMENT)
        address, launch_segment, stream, device = segment.address, self._cuda.launch, self._cuda.stream, self._device

        def entry(table: int) -> None:
            result = launch_segment(address, table, stream(device))
            if result:
                self._not_launched(name, segment, result, table)

        return entry

    def _segment(self, name: str, kernels: dict[str, LoadedKernel], alignment: int) -> LaunchableSegment:
        launches = [(launch, kernels[launch.kernel]) for launch in self._unit.segments[name]]
        return self._cuda.segment(self._device, launches, alignment)

    def _not_launched(self, name: str, segment: LaunchableSegment, result: int, table: int) -> None:
        """Launch kernels that take any pointers, if pointers are why these were not launched; else raise."""
        if result == UNALIGNED:
            segment = self._any_alignment(name)
            result = self._cuda.launch(segment.address, table, self._cuda.stream(self._device))
        if result == GRID_TOO_LARGE:
            raise RuntimeError(f"kernel {segment.failed} needs a larger grid than CUDA launches, {MOST_PROGRAMS}")
        if result:
            raise DriverError(f"CUDA error at the launch of kernel {segment.failed}: {self._cuda.text_of(result)}")

    def _any_alignment(self, name: str) -> LaunchableSegment:
        with self._lock:
            if name not in self._unaligned:
                kernels, _ = self.load([name], aligned=False)
                self._unaligned[name] = self._segment(name, kernels, 1)
            return self._unaligned[name]


def _require_grid(launch: Launch) -> None:
    """Raise CodegenUnavailable for a launch whose grid is always too large."""
    for dimension, most in zip(launch.grid, MOST_PROGRAMS, strict=False):
        if dimension.slot is None and -(-dimension.points // dimension.block) > most:
            raise CodegenUnavailable(f"kernel {launch.kernel} needs a larger grid than CUDA launches, {MOST_PROGRAMS}")
