"""Libraries from bytes: many at once, without memory files, and where nothing may be executed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from treadle_codegen.targets.cpp import load
from treadle_codegen.targets.cpp.build import compile_flags, compile_to_bytes, find_compiler
from treadle_codegen.targets.cpp.load import load_library


def _library(number: int) -> bytes:
    source = f'extern "C" int number() {{ return {number}; }}'
    return compile_to_bytes(source, find_compiler(), compile_flags(1))


def test_libraries_stay_apart() -> None:
    contents = [_library(n) for n in range(3)]
    handles = len(os.listdir("/proc/self/fd"))
    libraries = [load_library(contents[n % 3]) for n in range(30)]
    assert [library.number() for library in libraries] == [n % 3 for n in range(30)]
    assert len(os.listdir("/proc/self/fd")) == handles


def test_without_files_in_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert load_library(_library(4)).number() == 4
    assert list(tmp_path.iterdir()) == []


def test_a_system_that_loads_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(OSError):
        load.load_library(b"not a library")
    assert list(tmp_path.iterdir()) == []
