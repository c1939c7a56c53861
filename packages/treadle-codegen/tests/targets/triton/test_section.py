"""Programs of the loop IR that no lowering makes, as Triton kernels: run by the interpreter, compared with the IR's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from treadle_codegen import CodegenOptions
from treadle_codegen.host.host_of_plan import host_of
from treadle_codegen.host.plan import make_plan
from treadle_codegen.interpret import interpret
from treadle_codegen.ir.text import parse_program
from treadle_codegen.schedule.fuse import fuse

pytest.importorskip("triton")
from treadle_codegen.targets.triton.target import COSTS, interpreted_target  # noqa: E402


def run(text: str, *inputs: torch.Tensor) -> list[Any]:
    """The results of a program through kernels and host function."""
    program, target = parse_program(text), interpreted_target()
    renderer = target.renderer(CodegenOptions())
    nodes = fuse(program, parallel=True, costs=COSTS, why_not_local_row=target.why_not_local_row)
    plan = make_plan(program, nodes, renderer)
    source = renderer.render_unit(plan.segments, plan.slots, program.buffers)
    entries, _ = renderer.load(source, [segment.name for segment in plan.segments])
    return host_of(plan, target, entries, verify=True).run(*inputs)


SCATTER = """\
program inputs x, n outputs view(out, [3], [1], 0)
input x : float32 [300] strides [1] offset 0
input n : int64 [300] strides [1] offset 0
output out : float32 [3] strides [1] offset 0
loop zero [i0:3] reduce [] origins
  %0 = const 0.0 : float32
  %1 = store out[i0] %0 : float32
loop add [i0:300] reduce [] origins
  %0 = load x[i0] : float32
  %1 = load n[i0] : int64
  %2 = indirect_store out strides [1] sizes [3] add %0 %1 : float32
"""
SUM = """\
program inputs x outputs view(out, [2], [1], 0)
input x : float32 [2, 300] strides [300, 1] offset 0
output out : float32 [2] strides [1] offset 0
loop zero [i0:2] reduce [] origins
  %0 = const 1.0 : float32
  %1 = store out[i0] %0 : float32
loop add [i0:2, i1:300] reduce [] origins
  %0 = load x[300*i0 + i1] : float32
  %1 = store out[i0] add %0 : float32
"""


def test_scatter_adds() -> None:
    inputs = [torch.randn(300), torch.randint(0, 3, (300,))]
    torch.testing.assert_close(run(SCATTER, *inputs), interpret(parse_program(SCATTER), inputs))


def test_an_index_out_of_range_is_refused() -> None:
    with pytest.raises(IndexError):
        run(SCATTER, torch.randn(300), torch.full((300,), 3))


def test_stores_add() -> None:
    inputs = [torch.randn(2, 300)]
    torch.testing.assert_close(run(SUM, *inputs), interpret(parse_program(SUM), inputs))


def test_results_in_memory_are_read_by_a_later_section(monkeypatch: pytest.MonkeyPatch) -> None:
    """A maximum and a sum in one walk, whose results are outputs, and a section behind them that reads another index of one."""
    from treadle_codegen.targets.triton import tiles

    monkeypatch.setattr(tiles, "MAX_ROW", 64)
    text = """\
program inputs x outputs view(top, [300], [1], 0), view(out, [300, 100], [100, 1], 0)
input x : float32 [300, 100] strides [100, 1] offset 0
output top : float32 [300] strides [1] offset 0
output out : float32 [300, 100] strides [100, 1] offset 0
temp total : float32 [300] strides [1] offset 0
loop largest [i0:300] reduce [r0:100] origins
  %0 = load x[100*i0 + r0] : float32
  %1 = reduce max %0 : float32
  %2 = store top[i0] %1 : float32
loop sum [i0:300] reduce [r0:100] origins
  %0 = load x[100*i0 + r0] : float32
  %1 = load top[i0] : float32
  %2 = sub %0 %1 : float32
  %3 = exp %2 : float32
  %4 = reduce sum %3 : float32
  %5 = store total[i0] %4 : float32
loop all [i0:300, i1:100] reduce [] origins
  %0 = load x[100*i0 + i1] : float32
  %1 = load top[i0] : float32
  %2 = load total[i0] : float32
  %3 = sub %0 %1 : float32
  %4 = exp %3 : float32
  %5 = div %4 %2 : float32
  %6 = store out[100*i0 + i1] %5 : float32
"""
    x = torch.randn(300, 100)
    torch.testing.assert_close(run(text, x), [x.amax(1), x.softmax(1)])
