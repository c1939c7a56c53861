"""g++ computes whole vectors in loops of which it has been found to make scalar ones; its own notes say so."""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from aten_capture import capture

from treadle_codegen import compile_graph
from treadle_codegen.targets.cpp.build import compile_flags, find_compiler

# name -> function of x and y
PROGRAMS: dict[str, Callable[..., torch.Tensor]] = {
    "softplus": lambda x, y: F.softplus(x),
    "mish": lambda x, y: F.mish(x),
    "logit": lambda x, y: torch.logit(x.sigmoid(), 1e-6),
    "logarithm of a choice": lambda x, y: torch.where(y > 0, 1.0, x.exp()).log(),
    "bce": lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none"),
    "power of a short sum": lambda x, y: (x.reshape(128, 8).pow(2).sum(-1) + 0.5) ** 1.5,
}


def scalar_loops(source: str, tmp_path: Path) -> list[int]:
    """The lines of SIMD loops that g++ has not vectorised."""
    file = tmp_path / "kernels.cpp"
    file.write_text(source)
    command = [*find_compiler().command, *compile_flags(1, source), "-fopt-info-vec-optimized"]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "kernels.so"), str(file)], capture_output=True, text=True, check=True
    )
    vectorised = {int(line) for line in re.findall(r"kernels\.cpp:(\d+):\d+: optimized: loop vectorized", done.stderr)}
    pragmas = [k for k, line in enumerate(source.splitlines(), 1) if "#pragma omp simd" in line]
    return [k for k in pragmas if not vectorised & set(range(k, k + 5))]  # it names the loop or its first load


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the notes of another processor's compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_loops_are_vectorised(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    if not find_compiler().command[0].endswith("g++"):
        pytest.skip("the notes are g++'s")
    arguments = torch.randn(4, 256).to(dtype), torch.randn(4, 256).to(dtype)
    compiled = compile_graph(capture(PROGRAMS[name], arguments), arguments)
    assert scalar_loops(compiled.source, tmp_path) == []
    (found,) = compiled(*arguments)
    wide = [x.double() for x in arguments]
    tolerance = 1e-5 if dtype is torch.float32 else 1e-2
    torch.testing.assert_close(found.double(), PROGRAMS[name](*wide), rtol=tolerance, atol=tolerance)
