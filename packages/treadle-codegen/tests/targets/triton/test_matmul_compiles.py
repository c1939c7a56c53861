"""Every tiling of matrix products, compiled for a GPU without one."""

from __future__ import annotations

from pathlib import Path

import pytest
from triton_tilings import check_tilings

pytest.importorskip("triton")

from treadle_codegen.targets.triton.matmul_tiles import MatmulTiling

PROGRAM = """
program inputs x, w outputs view(y, [4096, 4096], [4096, 1], 0)
input x : {dtype} [4096, 4096] strides [4096, 1] offset 0
input w : {dtype} [4096, 4096] strides [1, 4096] offset 0
output y : {dtype} [4096, 4096] strides [4096, 1] offset 0
loop mm [i0:4096, i1:4096] reduce [r0:4096] origins
  %0 = load x[4096*i0 + r0] : {dtype}
  %1 = load w[4096*i1 + r0] : {dtype}
  %2 = reduce {dot} %0 %1 : float32
  %3 = cast %2 : {dtype}
  %4 = store y[4096*i0 + i1] %3 : {dtype}
"""


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "dot"), [("bfloat16", "dot"), ("float32", "dot_tf32"), ("float32", "dot")])
def test_no_tiling_spills_or_needs_too_much_shared_memory(dtype: str, dot: str, tmp_path: Path) -> None:
    text = PROGRAM.format(dtype=dtype, dot=dot).replace("%3 = cast %2 : float32", "%3 = add %2 %2 : float32")
    kernels = check_tilings(text, ["x", "w", "y"], MatmulTiling, 90, tmp_path, at_least=9)
    assert not any("int64" in kernel for kernel in kernels)
