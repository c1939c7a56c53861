"""Which kernels wait for the one before them by themselves, so that the launcher may let them begin early."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from aten_capture import capture

from treadle_codegen import CodegenOptions
from treadle_codegen.lower.program import lower_graph
from treadle_codegen.schedule.fuse import fuse
from treadle_codegen.schedule.kernel import Kernel

pytest.importorskip("triton")
from treadle_codegen.targets.triton.target import COSTS, TRITON  # noqa: E402

CASES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], bool]] = {
    "two streams of 16 bits": (lambda x: x * 2, False),
    "two streams of 32 bits": (lambda x: x.float(), True),
    "rows": (lambda x: torch.softmax(x, -1), True),
    "few blocks": (lambda x: x[:64] * 2, True),
}


@pytest.mark.parametrize("name", CASES)
def test_short_blocks_do_not_wait(name: str) -> None:
    compute, expected = CASES[name]
    x = torch.empty(8192, 1024, dtype=torch.bfloat16)
    if name == "two streams of 32 bits":
        x = x.float()
        compute = CASES["two streams of 16 bits"][0]
    program = lower_graph(capture(compute, [x]), [x], COSTS, TRITON.dtypes, None)
    renderer = TRITON.renderer(CodegenOptions())
    kernels = [node.item for node in fuse(program, parallel=True, costs=COSTS) if isinstance(node.item, Kernel)]
    assert kernels
    texts = [renderer.render_kernel(kernel, program).text for kernel in kernels]
    assert ["begin_kernel()" in text for text in texts] == [expected] * len(texts)
