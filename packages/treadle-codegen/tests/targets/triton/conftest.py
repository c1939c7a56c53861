"""A driver of these tests' own, in place of CUDA's."""

from __future__ import annotations

from pathlib import Path

import pytest
from targets.triton.driver import Driver

from treadle_codegen.targets.cpp.build import compile_to_bytes, find_compiler


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    source = Path(__file__).with_name("fake_cuda.cpp").read_text()
    return compile_to_bytes(source, find_compiler(), ("-shared", "-fPIC", "-O1"))


@pytest.fixture
def driver(built: bytes, tmp_path: Path) -> Driver:
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(built)
    driver = Driver(path)
    driver.calls()
    return driver
