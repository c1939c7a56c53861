"""What the first calls of a process import."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from treadle_shapes import ShapeEnv
from treadle_shapes.torch import fake_mode, fake_shape_env

_PROGRAM = """
import sys
import torch
from treadle_shapes import ShapeEnv
from treadle_shapes.torch import fake_mode, fake_shape_env, fake_tensor

mode = fake_mode(shape_env=fake_shape_env(ShapeEnv()))
x = fake_tensor(mode, torch.randn(4, 4, 4), [None] * 3, source="x")
with mode:
    for _ in range(2):
        {calls}
print(*(name for name in ("sympy", "torch.distributed.tensor", "torch._dynamo") if name in sys.modules))
"""

CALLS = {
    "products": "x[0].mm(x[0])",
    "views": "x[None].transpose(0, 1); x.view(16, 4); x[0].t()",
    "sums": "x.sum(0)",
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_known_sizes_import_neither_sympy_nor_dtensor(name):
    program = _PROGRAM.format(calls=CALLS[name])
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""


def test_checks_raise_as_before():
    fake_mode(shape_env=fake_shape_env(ShapeEnv()))  # installs
    torch._check(True)
    torch._check(True, lambda: pytest.fail("no message is made"))
    with pytest.raises(RuntimeError, match="two is three"):
        torch._check(2 == 3, lambda: "two is three")
    with pytest.raises(ValueError, match="Expected cond to be True"):
        torch._check_value(False)
    with pytest.raises(TypeError, match="cond must be a bool"):
        torch._check(1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Tensor"):
        torch._check(torch.tensor(True))  # type: ignore[arg-type]
