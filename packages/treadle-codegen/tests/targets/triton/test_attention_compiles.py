"""Every tiling of attention, compiled for GPUs without one."""

from __future__ import annotations

from pathlib import Path

import pytest
from triton_tilings import SHARED_BYTES, check_tilings

pytest.importorskip("triton")

from treadle_codegen.targets.triton.attention_tiles import AttentionTiling

PROGRAM = """
program inputs q, k, v, bias outputs view(y, [16, 4096, {width}], [{matrix}, {width}, 1], 0)
input q : bfloat16 [16, 4096, {width}] strides [{matrix}, {width}, 1] offset 0
input k : bfloat16 [16, 4096, {width}] strides [{matrix}, {width}, 1] offset 0
input v : bfloat16 [16, 4096, {width}] strides [{matrix}, {width}, 1] offset 0
input bias : bfloat16 [4096, 4096] strides [4096, 1] offset 0
output y : bfloat16 [16, 4096, {width}] strides [{matrix}, {width}, 1] offset 0
loop attention [i0:16, i1:4096, i2:{width}] reduce [r0:4096, r1:{width}] origins
  %0 = load q[{matrix}*i0 + {width}*i1 + r1] : bfloat16
  %1 = load k[{matrix}*i0 + {width}*r0 + r1] : bfloat16
  %2 = inner_dot %0 %1 : float32
  %3 = const 0.125 : float32
  %4 = mul %2 %3 : float32
  %5 = load bias[4096*i1 + r0] : bfloat16
  %6 = cast %5 : float32
  %7 = add %4 %6 : float32
  %8 = index i1 : int64
  %9 = index r0 : int64
  %10 = ge %8 %9 : bool
  %11 = const -inf : float32
  %12 = where %10 %7 %11 : float32
  %13 = load v[{matrix}*i0 + {width}*r0 + i2] : bfloat16
  %14 = reduce safe_softmax_dot %12 %13 : float32
  %15 = cast %14 : bfloat16
  %16 = store y[{matrix}*i0 + {width}*i1 + i2] %15 : bfloat16
"""


@pytest.mark.slow
@pytest.mark.parametrize("capability", SHARED_BYTES)
@pytest.mark.parametrize("width", [64, 128, 256])
def test_no_tiling_spills_or_needs_too_much_shared_memory(width: int, capability: int, tmp_path: Path) -> None:
    text = PROGRAM.format(width=width, matrix=4096 * width)
    check_tilings(text, ["q", "k", "v", "bias", "y"], AttentionTiling, capability, tmp_path, at_least=3)
