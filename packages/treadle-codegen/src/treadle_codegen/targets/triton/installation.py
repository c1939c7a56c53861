"""Which Triton is installed. It is not imported to find out."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
from pathlib import Path

from treadle_codegen.errors import CodegenUnavailable


@functools.lru_cache(maxsize=1)
def triton_identity() -> str:
    """A text that changes with the installed Triton, which is not imported. Raises CodegenUnavailable without one."""
    found = importlib.util.find_spec("triton")
    if found is None or found.origin is None:
        raise CodegenUnavailable("Triton is not installed. Install it with `pip install treadle-codegen[triton]`.")
    folder = Path(found.origin).parent
    version = re.search(r"__version__\s*=\s*['\"](.+?)['\"]", Path(found.origin).read_text())
    library = os.stat(folder / "_C" / "libtriton.so")
    return f"{version.group(1) if version else '?'}:{library.st_size}:{library.st_mtime_ns}"
