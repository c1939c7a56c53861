"""CUDA's driver and `Runtime` for tests: real launches of `launcher.cpp`, into a library that remembers the calls."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

from treadle_codegen.options import CodegenOptions
from treadle_codegen.targets.triton.launcher import Launcher, LoadedKernel
from treadle_codegen.targets.triton.offline import Binary


class Driver:
    """The tests' driver, loaded twice: by the launcher, and here to ask it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.library = ctypes.CDLL(str(path))
        self.library.fake_calls.restype = ctypes.c_char_p
        self.library.fake_current.argtypes = [ctypes.c_void_p]
        self.launcher = Launcher(CodegenOptions(), str(path))

    def calls(self) -> list[str]:
        lines = self.library.fake_calls().decode().splitlines()
        self.library.fake_clear()
        return lines

    def fail(self, name: str, code: int) -> None:
        self.library.fake_fail(name.encode(), code)


class FakeRuntime:
    """`Runtime` of devices 0 and 1, both of compute capability 9.0."""

    def __init__(self, driver: Driver) -> None:
        launcher = driver.launcher
        self.launch: Callable[[int, int, int], int] = launcher.launch
        self.segment, self.text_of = launcher.segment, launcher.text_of
        self.most_arguments = launcher.most_arguments
        self.streams = {0: 0x100, 1: 0x200}
        self.device = 0
        self.loaded: list[tuple[int, Binary]] = []
        self._launcher = launcher

    def stream(self, device: int) -> int:
        return self.streams[device]

    def current_device(self) -> int:
        return self.device

    def capability(self, device: int) -> int:
        return 90

    def prepare(self) -> None: ...

    def load(self, device: int, binary: Binary, pointers: int) -> LoadedKernel:
        self.loaded.append((device, binary))
        return self._launcher.load(device, binary.content, binary.facts, pointers)
