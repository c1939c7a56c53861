"""What cannot work: indices out of range, no memory. The error is eager's, and the process goes on where eager's does."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
import torch

import treadle

PROGRAMS = {
    "embedding": "torch.nn.functional.embedding(i, x) * 2",
    "index": "x[i] + 1",
    "gather": "x.gather(0, i[:, None]) + 1",
    "index_select": "torch.index_select(x, 0, i) + 1",
    "scatter": "x.scatter(0, i[:, None], 1.0) + 1",
    "index_put": "x.index_put((i,), x[:1], accumulate=True)",
}
SCRIPT = """
import torch, treadle
def function(x, i):
    return {program}
compiled = treadle.compile(function)
x = torch.randn(10, 4, device="cuda")
torch.testing.assert_close(compiled(x, torch.tensor([1, 2, 9], device="cuda")), function(x, torch.tensor([1, 2, 9], device="cuda")))
print("right", flush=True)
try:
    compiled(x, torch.tensor([1, 2, {index}], device="cuda"))
    torch.cuda.synchronize()
except Exception as error:
    print("raised", type(error).__name__, str(error).splitlines()[0], flush=True)
"""


@pytest.mark.only_cuda
@pytest.mark.parametrize("index", [10, -11, 10**9])
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_index_out_of_range(name: str, index: int) -> None:
    """The device asserts, as in eager; the process cannot use the device afterwards, so each case has its own."""
    script = textwrap.dedent(SCRIPT.format(program=PROGRAMS[name], index=index))
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, env={**os.environ}
    )
    assert "right" in run.stdout, run.stderr[-2000:]
    assert "raised" in run.stdout, run.stdout + run.stderr[-2000:]
    assert "AcceleratorError" in run.stdout or "RuntimeError" in run.stdout or "IndexError" in run.stdout, run.stdout


@pytest.mark.only_cuda
def test_out_of_memory(device: torch.device) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x[:, None, None] * x[:, None] * x).cumsum(0)

    compiled = treadle.compile(function)
    small = torch.randn(20, device=device)
    torch.testing.assert_close(compiled(small), function(small), rtol=1e-3, atol=1e-3)
    large = torch.randn(6000, device=device)  # 864 GB
    with pytest.raises(torch.cuda.OutOfMemoryError):
        compiled(large)
    assert torch.cuda.memory_allocated(device) < 2**30
    torch.testing.assert_close(compiled(small), function(small), rtol=1e-3, atol=1e-3)


@pytest.mark.only_cuda
def test_a_failing_call_changes_nothing(device: torch.device) -> None:
    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        y = torch.randn(n, device=x.device)
        x.add_(1)
        return x.sum() + y[:1]

    compiled = treadle.compile(function)
    x = torch.zeros(5, device=device)
    compiled(x, 10)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        compiled(x, 2**42)
    assert x.tolist() == [1.0] * 5
