"""Builds treadle_frame._core: as a hatchling build hook for wheels and editable installs, and as a script in place.

`python hatch_build.py` compiles for the running interpreter and puts the extension next to the Python sources.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
PACKAGE = Path("src") / "treadle_frame"
COMPILE_ARGS = ["-O2", "-std=gnu11", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unused-parameter"]
COMPILE_ARGS += ["-Wno-missing-field-initializers", "-Wno-cast-function-type"]


def build_extension(directory: Path, extra_args: list[str] | None = None) -> Path:
    """Compiles the extension for the running interpreter into `directory`; returns its path.

    It is built elsewhere and moved there in one step, so a process that imports it meanwhile sees the old or the new file.
    """
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    extra = extra_args or []
    sources = sorted(str(path) for path in (ROOT / "csrc").glob("*.c"))
    headers = sorted(str(path) for pattern in ("*.h", "*.def") for path in (ROOT / "csrc").glob(pattern))
    extension = Extension(
        "_core",
        sources,
        depends=headers,
        include_dirs=[str(ROOT / "csrc")],
        extra_compile_args=COMPILE_ARGS + extra,
        extra_link_args=extra,
    )
    with tempfile.TemporaryDirectory(prefix="treadle-frame-") as scratch:
        command = build_ext(Distribution({"name": "treadle-frame", "ext_modules": [extension]}))
        command.build_lib = scratch
        command.build_temp = scratch
        command.ensure_finalized()
        command.run()
        built = Path(command.get_ext_fullpath("_core"))
        directory.mkdir(parents=True, exist_ok=True)
        arriving = directory / f".{built.name}.{os.getpid()}"
        arriving.write_bytes(built.read_bytes())
        arriving.chmod(0o755)
        os.replace(arriving, directory / built.name)
    return directory / built.name


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # as a script, hatchling is not needed
    BuildHookInterface = None

if BuildHookInterface is not None:

    class CustomBuildHook(BuildHookInterface):
        """Compiles before the wheel is put together and tags it with the interpreter's ABI."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            if self.target_name != "wheel":
                return
            built = build_extension(ROOT / PACKAGE)
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["artifacts"].append(f"{PACKAGE.as_posix()}/{built.name}")


if __name__ == "__main__":
    print(build_extension(ROOT / PACKAGE, sys.argv[1:]))
