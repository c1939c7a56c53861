"""Blocks of kernels, compiled for a GPU without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle_codegen.ir.text import parse_program
from treadle_codegen.options import CodegenOptions
from treadle_codegen.schedule.fuse import fuse
from treadle_codegen.targets.renderer import Segment
from treadle_codegen.targets.table_slots import slot_key

pytest.importorskip("triton")

from treadle_codegen.targets.triton.offline import Architecture, compile_kernels
from treadle_codegen.targets.triton.renderer import TritonRenderer
from treadle_codegen.targets.triton.unit import parse_unit

EXTREMES = """
program inputs x outputs view(a, [s1], [1], 0), view(b, [s1], [1], 0), view(c, [s1], [1], 0)
symbol s0 1 None
symbol s1 1 None
input x : {dtype} [s0, s1] strides [s1, 1] offset 0
output a : int64 [s1] strides [1] offset 0
output b : int64 [s1] strides [1] offset 0
output c : {dtype} [s1] strides [1] offset 0
loop largest [i0:s1] reduce [r0:s0] origins
  %0 = load x[i0 + r0*s1] : {dtype}
  %1 = reduce argmax %0 : int64
  %2 = store a[i0] %1 : int64
loop smallest [i0:s1] reduce [r0:s0] origins
  %0 = load x[i0 + r0*s1] : {dtype}
  %1 = reduce argmin %0 : int64
  %2 = store b[i0] %1 : int64
loop value [i0:s1] reduce [r0:s0] origins
  %0 = load x[i0 + r0*s1] : {dtype}
  %1 = reduce max %0 : {dtype}
  %2 = store c[i0] %1 : {dtype}
"""


@pytest.mark.parametrize("dtype", ["float32", "int64", "float64"])
def test_running_values_of_a_walk_do_not_spill(dtype: str, tmp_path: Path) -> None:
    program = parse_program(EXTREMES.format(dtype=dtype))
    (node,) = fuse(program)
    renderer = TritonRenderer(CodegenOptions(), lambda *args, **kwargs: ({}, False))
    kernel = renderer.render_kernel(node.item, program)
    slots = {name: 1 + k for k, name in enumerate([*program.buffers, *map(slot_key, kernel.numbers)])}
    unit = parse_unit(renderer.render_unit([Segment("s", (kernel,))], slots, program.buffers))
    (binary,) = compile_kernels(
        unit.kernels.values(), Architecture.cuda(90), CodegenOptions(cache_dir=tmp_path)
    ).values()
    assert binary.facts["stack_bytes"] <= 16
