"""Every test leaves the hook off, no entries behind, and builds C libraries with whatever compiler there is."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from frame_helpers import UNDER

import treadle_frame

assert UNDER is None or treadle_frame.__file__.startswith(UNDER), "the sanitized build must be the one that is tested"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes more than a few seconds")


@pytest.fixture(autouse=True)
def hook_off() -> Iterator[None]:
    treadle_frame.reset()
    yield
    treadle_frame.set_handler(None)
    treadle_frame.reset()
    assert not treadle_frame.is_installed()


@pytest.fixture(scope="session")
def compile_c(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compiles C text to a shared library; skips the test where there is no C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")

    def build(text: str, *options: str) -> Path:
        if compiler is None:
            pytest.skip("no C compiler")
        directory = tmp_path_factory.mktemp("c")
        source = directory / "library.c"
        source.write_text(text)
        library = directory / "library.so"
        include = f"-I{sysconfig.get_paths()['include']}"
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", include, *options, str(source), "-o", str(library)], check=True
        )
        return library

    return build
