"""Importing the compiler starts no full collection of the process, which may hold millions of objects by then."""

from __future__ import annotations

import subprocess
import sys

_IMPORTS = """
import gc
import torch
for _ in range(12): gc.collect(1)
for _ in range(12): gc.collect(0)
found = []
gc.callbacks.append(lambda phase, info: found.append(info["generation"]))
import treadle
treadle.compile(lambda x: x + 1)
gc.callbacks.clear()
assert not any(found), found
assert gc.isenabled()
"""


def test_an_import_starts_no_full_collection():
    subprocess.run([sys.executable, "-c", _IMPORTS], check=True)
