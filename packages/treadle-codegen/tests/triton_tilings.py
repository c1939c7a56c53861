"""Every tiling of a kernel, compiled for a GPU without one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from treadle_codegen.ir.text import parse_program
from treadle_codegen.options import CodegenOptions
from treadle_codegen.schedule.fuse import fuse
from treadle_codegen.schedule.kernel import Kernel
from treadle_codegen.targets.renderer import Segment

# Bytes of shared memory of a multiprocessor, by compute capability (CUDA C++ Programming Guide, table of capabilities).
SHARED_BYTES = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}


def check_tilings(
    text: str, buffers: Sequence[str], kind: type, capability: int, cache: Path, at_least: int
) -> list[str]:
    """The texts of the one kernel of this program in all its tilings, which are of this kind: none spills, none needs more shared memory
    or registers than there are. buffers: what the kernel reads and writes."""
    from treadle_codegen.targets.triton.offline import Architecture, compile_kernels
    from treadle_codegen.targets.triton.renderer import TritonRenderer
    from treadle_codegen.targets.triton.unit import parse_unit

    program = parse_program(text)
    (node,) = fuse(program)
    assert isinstance(node.item, Kernel)
    renderer = TritonRenderer(CodegenOptions(), lambda *args, **kwargs: ({}, False))
    tilings = renderer.candidates(node.item, program)
    assert len(tilings) >= at_least
    rendered = {tiling: renderer.render_kernel(node.item, program, tiling) for tiling in tilings}
    slots = {name: k for k, name in enumerate(buffers, 1)}
    source = renderer.render_unit([Segment("s", tuple(rendered.values()))], slots, program.buffers)
    unit = parse_unit(source)
    options = CodegenOptions(cache_dir=cache)
    binaries = compile_kernels(unit.kernels.values(), Architecture.cuda(capability), options)
    for tiling, kernel in rendered.items():
        assert isinstance(tiling, kind)
        facts = binaries[kernel.function].facts
        assert facts["stack_bytes"] == 0, str(tiling)
        assert facts["shared"] <= SHARED_BYTES[capability], str(tiling)
        assert facts["registers"] * facts["num_warps"] * 32 <= 1 << 16, str(tiling)
    return [kernel.text for kernel in rendered.values()]
