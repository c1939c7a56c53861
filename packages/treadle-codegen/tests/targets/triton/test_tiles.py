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


def _columns_read_twice() -> str:
    """Sums down columns of 196 products of nine operands, and quotients for which each of the operands is needed once more."""
    names = "cdefghpqr"
    values = [f"%{2 * k + 1}" for k in range(len(names))]

    def loop(head: str, at: str, lines: list[str]) -> list[str]:
        loads = [line for n in names for line in (f"load {n}[i0 + 320*{at}] : bfloat16", "cast %{before} : float32")]
        return [head, *(f"  %{k} = {line.format(before=k - 1)}" for k, line in enumerate([*loads, *lines]))]

    products = [f"mul {'%{before}' if k else values[0]} {v} : float32" for k, v in enumerate(values[1:])]
    quotients = ["load b[i0] : float32", f"div {values[0]} %{{before}} : float32"]
    for v in values[1:]:
        quotients += [f"add %{{before}} {v} : float32", f"div %{{before}} %{2 * len(names)} : float32"]
    lines = [f"program inputs {' '.join(names)} outputs view(a, [320, 196], [1, 320], 0)"]
    lines += [f"input {n} : bfloat16 [320, 196] strides [1, 320] offset 0" for n in names]
    lines += ["temp b : float32 [320] strides [1] offset 0", "output a : float32 [320, 196] strides [1, 320] offset 0"]
    sums = [*products, "reduce sum %{before} : float32", "store b[i0] %{before} : float32"]
    lines += loop("loop sums [i0:320] reduce [r0:196] origins", "r0", sums)
    lines += loop(
        "loop shares [i0:320, i1:196] reduce [] origins", "i1", [*quotients, "store a[i0 + 320*i1] %{before} : float32"]
    )
    return "\n".join(lines) + "\n"


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


def test_rows_of_many_operands_do_not_spill(tmp_path: Path) -> None:
    assert spilled_bytes(_columns_read_twice(), tmp_path) <= 16
