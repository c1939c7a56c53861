"""Blocks of kernels, compiled for a GPU without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle_codegen.ir.text import parse_program
from treadle_codegen.options import CodegenOptions
from treadle_codegen.schedule.fuse import fuse
from treadle_codegen.schedule.kernel import Kernel
from treadle_codegen.targets.renderer import Segment
from treadle_codegen.targets.table_slots import slot_key

pytest.importorskip("triton")

from treadle_codegen.targets.triton.offline import Architecture, compile_kernels
from treadle_codegen.targets.triton.renderer import TritonRenderer
from treadle_codegen.targets.triton.target import COSTS
from treadle_codegen.targets.triton.tiles import why_not_registers
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


RUNNING_SUMS = """
program inputs x outputs view(a, [s0, s1], [s1, 1], 0)
symbol s0 1 None
symbol s1 1 None
input x : int8 [s0, s1] strides [s1, 1] offset 0
output a : int64 [s0, s1] strides [s1, 1] offset 0
loop sums [i0:s1, i1:s0] reduce [] origins
  %0 = load x[i0 + i1*s1] : int8
  %1 = cast %0 : int64
  %2 = scan sum %1 : int64
  %3 = store a[i0 + i1*s1] %2 : int64
"""
ROWS_OF_DOUBLES = """
program inputs x outputs view(a, [1200, 5000], [5000, 1], 0)
input x : float64 [1200, 5000] strides [5000, 1] offset 0
temp b : float64 [1200, 5000] strides [5000, 1] offset 0
output a : float64 [1200, 5000] strides [5000, 1] offset 0
loop sums [i0:1200, i1:5000] reduce [] origins
  %0 = load x[5000*i0 + i1] : float64
  %1 = scan sum %0 : float64
  %2 = store b[5000*i0 + i1] %1 : float64
loop cosines [i0:1200, i1:5000] reduce [] origins
  %0 = load b[5000*i0 + i1] : float64
  %1 = cos %0 : float64
  %2 = store a[5000*i0 + i1] %1 : float64
"""


def spilled_bytes(text: str, directory: Path) -> int:
    program = parse_program(text)
    (node,) = fuse(program, parallel=True, costs=COSTS, why_not_local_row=why_not_registers)
    assert isinstance(node.item, Kernel)
    renderer = TritonRenderer(CodegenOptions(), lambda *args, **kwargs: ({}, False))
    kernel = renderer.render_kernel(node.item, program)
    slots = {name: 1 + k for k, name in enumerate([*program.buffers, *map(slot_key, kernel.numbers)])}
    unit = parse_unit(renderer.render_unit([Segment("s", (kernel,))], slots, program.buffers))
    options = CodegenOptions(cache_dir=directory)
    (binary,) = compile_kernels(unit.kernels.values(), Architecture.cuda(90), options).values()
    return binary.facts["stack_bytes"] - binary.facts["local_bytes"]


@pytest.mark.parametrize("dtype", ["float32", "int64", "float64"])
def test_running_values_of_a_walk_do_not_spill(dtype: str, tmp_path: Path) -> None:
    assert spilled_bytes(EXTREMES.format(dtype=dtype), tmp_path) <= 16


@pytest.mark.parametrize("text", [RUNNING_SUMS, ROWS_OF_DOUBLES], ids=["columns", "rows"])
def test_scans_do_not_spill(text: str, tmp_path: Path) -> None:
    assert spilled_bytes(text, tmp_path) <= 16
