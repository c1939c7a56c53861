"""Treadle as a backend of torch.compile, and PyTorch's backends under Treadle's tracer. In processes of their own: torch.compile's frame
evaluator and treadle's cannot be active at the same time."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

SETUP = """
import torch, treadle
treadle.config.raise_internal_errors = True
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.GELU(), torch.nn.Linear(8, 3)).eval()
x = torch.randn(4, 6)
"""

TREADLE_UNDER_TORCH = """
with torch.no_grad():
    compiled = torch.compile(model, backend="treadle")
    torch.testing.assert_close(compiled(x), model(x))
    torch.testing.assert_close(compiled(x[:3]), model(x[:3]))
assert treadle.stats().cache_hits + treadle.stats().cache_misses >= 1, treadle.stats()
compiled(x).sum().backward()
assert model[0].weight.grad is not None
"""

INDUCTOR_UNDER_TREADLE = """
with torch.no_grad():
    compiled = treadle.compile(model, backend="inductor", fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), model(x))
assert treadle.stats().graphs == 1
"""

TORCH_EAGER_UNDER_TREADLE = """
with torch.no_grad():
    torch.testing.assert_close(treadle.compile(model, backend="aot_eager_decomp_partition")(x), model(x))
try:
    treadle.compile(model, backend="no_such_backend")
except ValueError as error:
    assert "inductor" in str(error)
else:
    raise AssertionError
"""

CHANGING_SIZES_AND_NUMBERS = """
def function(x, k, f):
    return x * k + f * 2 + x.shape[0], f + 1, x.shape[0] * 2

calls = [(3, 2, 0.5), (4, 3, 0.25), (5, 4, 0.125), (4, 5, 2.0), (5, 4, 0.125)]
with torch.no_grad():
    for backend in ("inductor", "aot_eager_decomp_partition"):
        compiled = treadle.compile(function, backend=backend)
        for size, k, f in calls:
            x = torch.arange(float(size))
            have, want = compiled(x, k, f), function(x, k, f)
            assert torch.equal(have[0], want[0]) and have[1:] == want[1:], (backend, size, k, f)
"""

IMPORTS = """
import sys
with torch.no_grad():
    torch.testing.assert_close(treadle.compile(model)(x), model(x))
heavy = [name for name in ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd") if name in sys.modules]
assert not heavy, heavy
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [TREADLE_UNDER_TORCH, INDUCTOR_UNDER_TREADLE, TORCH_EAGER_UNDER_TREADLE, CHANGING_SIZES_AND_NUMBERS, IMPORTS],
)
def test_program(program, tmp_path):
    if '"inductor"' in program and " " in torch.__file__:
        pytest.skip("Inductor passes torch's folder to the linker unquoted")
    # The entry point as an installed distribution would declare it, for trees that are on the path without being installed.
    metadata = tmp_path / "treadle_entry-0.0.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: treadle-entry\nVersion: 0.0.0\n")
    (metadata / "entry_points.txt").write_text(
        "[torch_dynamo_backends]\ntreadle = treadle.torch_backend:treadle_backend\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", SETUP + program],
        env={
            **os.environ,
            "PYTHONPATH": path,
            "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
