"""Builds treadle_frame with AddressSanitizer and UBSan for this interpreter and runs tests of it under them.

python tests/asan/run.py [pytest arguments]     exits with pytest's status, or 77 where there is no libasan
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2]
FLAGS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g", "-O1"]
UNAVAILABLE = 77


def why_not_available() -> str | None:
    """What is missing for a sanitized build, None when nothing is."""
    if not (PACKAGE / "src" / "treadle_frame").is_dir():
        return "the sources are not here"
    if importlib.util.find_spec("setuptools") is None:
        return "setuptools is not installed"
    if shutil.which("gcc") is None:
        return "gcc is not installed"
    if runtime("libasan.so") is None or runtime("libubsan.so") is None:
        return "gcc has no libasan.so or libubsan.so"
    return None


def runtime(name: str) -> Path | None:
    """The path of one of gcc's runtime libraries."""
    found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    path = Path(found.stdout.strip())
    return path.resolve() if path.is_absolute() else None


def build(directory: Path) -> None:
    """A copy of the Python sources with a sanitized extension."""
    ignore = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(PACKAGE / "src" / "treadle_frame", directory / "treadle_frame", ignore=ignore)
    sys.path.insert(0, str(PACKAGE))
    from hatch_build import build_extension

    build_extension(directory / "treadle_frame", FLAGS)


def main(arguments: list[str]) -> int:
    missing = why_not_available()
    if missing is not None:
        print(missing)
        return UNAVAILABLE
    with tempfile.TemporaryDirectory(prefix="treadle-asan-") as scratch:
        build(Path(scratch))
        environment = {
            **os.environ,
            "LD_PRELOAD": f"{runtime('libasan.so')} {runtime('libubsan.so')}",
            "ASAN_OPTIONS": "detect_leaks=0:handle_segv=1:detect_stack_use_after_return=0",
            "PYTHONMALLOC": "malloc",
            "PYTHONPATH": os.pathsep.join([scratch, str(PACKAGE / "tests")]),
            "TREADLE_FRAME_UNDER": scratch,
        }
        chosen = arguments or [str(PACKAGE / "tests")]
        options = ["-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
        command = [sys.executable, "-m", "pytest", *options, *chosen]
        return subprocess.run(command, env=environment, cwd=PACKAGE).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
