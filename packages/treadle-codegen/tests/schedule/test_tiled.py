"""Loops that read across the axis that they write along stay out of kernels of small loops."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from aten_capture import capture

from treadle_codegen import CodegenOptions, compile_graph
from treadle_codegen.costs import Costs
from treadle_codegen.ir.text import parse_program
from treadle_codegen.schedule.fuse import fuse
from treadle_codegen.schedule.verify import verify_schedule

SCALED = """\
program inputs x, s outputs view(out, [{c}, {p}], [{p}, 1], 0)
input x : float32 [{c}, {p}] strides [{near}, {far}] offset 0
input s : float32 [{c}] strides [1] offset 0
temp scale : float32 [{c}] strides [1] offset 0
output out : float32 [{c}, {p}] strides [{p}, 1] offset 0
loop scale [i0:{c}] reduce [] origins a
  %0 = load s[i0] : float32
  %1 = exp %0 : float32
  %2 = store scale[i0] %1 : float32
loop apply [i0:{c}, i1:{p}] reduce [] origins b
  %0 = load x[{near}*i0 + {far}*i1] : float32
  %1 = load scale[i0] : float32
  %2 = mul %0 %1 : float32
  %3 = store out[{p}*i0 + i1] %2 : float32
"""


def kernels(c: int, p: int, *, across: bool, least: int = 1024) -> int:
    near, far = (1, c) if across else (p, 1)
    program = parse_program(SCALED.format(c=c, p=p, near=near, far=far))
    nodes = fuse(program, costs=Costs(tiled_points=least))
    assert list(verify_schedule(program, nodes)) == []
    return len(nodes)


def test_a_loop_across_stands_alone() -> None:
    assert kernels(64, 256, across=True) == 2
    assert kernels(64, 256, across=False) == 1
    assert kernels(64, 256, across=True, least=0) == 1  # of a target without tiles


@pytest.mark.parametrize(("c", "p"), [(64, 12), (12, 256), (32, 31)])
def test_small_loops_and_short_axes_join(c: int, p: int) -> None:
    assert kernels(c, p, across=True) == 1


@pytest.mark.parametrize("groups", [1, 4, 16])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_group_norm_from_channels_last(groups: int, memory_format: torch.memory_format) -> None:
    x = torch.randn(2, 64, 16, 20).contiguous(memory_format=torch.channels_last)
    weight, bias = torch.randn(64), torch.randn(64)

    def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.silu(F.group_norm(x, groups, weight, bias)).clone(memory_format=memory_format)

    tensors = [x, weight, bias]
    graph = compile_graph(capture(norm, tensors), tensors, options=CodegenOptions(verify=True))
    (found,) = graph(*tensors)
    assert found.stride() == norm(*tensors).stride()
    torch.testing.assert_close(found, norm(*tensors), rtol=1e-5, atol=1e-5)
    assert ("[64][64]" in graph.kernel_source) == (memory_format is torch.contiguous_format)
    x[0, 3, 2, 1] = torch.inf
    assert torch.equal(graph(*tensors)[0].isnan(), norm(*tensors).isnan())
