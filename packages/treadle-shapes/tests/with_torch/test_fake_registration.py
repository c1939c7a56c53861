"""Fake kernels of Treadle's own operators: they answer fake tensors, and registering one does not search all modules."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import inspect
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from treadle_shapes.torch import register_fake

known = set(inspect.modulesbyfile)
library = torch.library.Library("treadle", "FRAGMENT")
library.define("half_of(Tensor x) -> Tensor")
register_fake("treadle::half_of", lambda x: x.new_empty(x.shape[0] // 2), library)
added = set(inspect.modulesbyfile) - known
with FakeTensorMode():
    assert torch.ops.treadle.half_of.default(torch.empty(10)).shape == (5,)
assert len(added) <= 3, f"{len(added)} modules were looked at"
(name,) = {inspect.modulesbyfile[path] for path in added}
assert name == register_fake.__module__  # what `inspect` finds itself
path = inspect.getabsfile(register_fake)
inspect.modulesbyfile.clear()
inspect._filesbymodname.clear()
inspect.getmodule(register_fake.__code__)
assert inspect.modulesbyfile[path] == name and len(inspect.modulesbyfile) > 100
"""


def test_registering_does_not_search_all_modules() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
