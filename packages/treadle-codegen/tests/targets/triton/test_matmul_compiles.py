"""Every tiling of matrix products, compiled for a GPU without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle_codegen.ir.text import parse_program
from treadle_codegen.options import CodegenOptions
from treadle_codegen.schedule.fuse import fuse
from treadle_codegen.schedule.kernel import Kernel
from treadle_codegen.targets.renderer import Segment

pytest.importorskip("triton")

from treadle_codegen.targets.triton.matmul_tiles import MatmulTiling
from treadle_codegen.targets.triton.offline import Architecture, compile_kernels
from treadle_codegen.targets.triton.renderer import TritonRenderer
from treadle_codegen.targets.triton.unit import parse_unit

SHARED_BYTES = (
    227 << 10
)  # of a multiprocessor of compute capability 9.0 (CUDA C++ Programming Guide, table of capabilities)
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
    text = PROGRAM.format(dtype=dtype, dot=dot)
    program = parse_program(text.replace("%3 = cast %2 : float32", "%3 = add %2 %2 : float32"))
    (node,) = fuse(program)
    assert isinstance(node.item, Kernel)
    renderer = TritonRenderer(CodegenOptions(), lambda *args, **kwargs: ({}, False))
    tilings = renderer.candidates(node.item, program)
    assert len(tilings) > 8
    rendered = {tiling: renderer.render_kernel(node.item, program, tiling) for tiling in tilings}
    assert not any("int64" in kernel.text for kernel in rendered.values())
    source = renderer.render_unit([Segment("s", tuple(rendered.values()))], {"x": 1, "w": 2, "y": 3}, program.buffers)
    unit = parse_unit(source)
    binaries = compile_kernels(unit.kernels.values(), Architecture.cuda(90), CodegenOptions(cache_dir=tmp_path))
    for tiling, kernel in rendered.items():
        assert isinstance(tiling, MatmulTiling)
        facts = binaries[kernel.function].facts
        assert facts["stack_bytes"] == 0, str(tiling)
        assert facts["shared"] <= SHARED_BYTES, str(tiling)
        assert facts["registers"] * facts["num_warps"] * 32 <= 1 << 16, str(tiling)
