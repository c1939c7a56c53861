"""What importing the compiler costs: no full collection of the process, and no module that only a compile from scratch needs."""

from __future__ import annotations

import os
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


_STEP = """
import sys
import torch
import treadle
layer = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU())
treadle.compile(layer)(torch.randn(8, 64)).sum().backward()
assert treadle.stats().graphs == 1
compilers = ("lower.program", "schedule.fuse", "targets.cpp.renderer", "targets.triton.renderer", "rewrite.pipeline")
print([name for name in compilers if f"treadle_codegen.{name}" in sys.modules])
"""


def test_a_process_that_finds_its_programs_imports_none_of_the_modules_that_compile_them(tmp_path):
    def step():
        environment = os.environ | {"TREADLE_CACHE_DIR": str(tmp_path), "TREADLE_LEAVE_UNPROFITABLE": "0"}
        return subprocess.run(
            [sys.executable, "-c", _STEP], check=True, env=environment, stdout=subprocess.PIPE, text=True
        ).stdout

    assert "lower.program" in step()
    assert step().strip() == "[]"
