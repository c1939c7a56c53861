"""Kernels over one slice of a buffer after the other are one function, called with pointers to the slices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from aten_capture import capture
from torch import Tensor

from treadle_codegen import CodegenOptions, compile_graph
from treadle_codegen.ir.loops import Axis, Buffer, BufferKind, Instr, Load, Loop, Program, Store
from treadle_codegen.schedule.kernel import Kernel, single
from treadle_codegen.targets.cpp.renderer import CppRenderer
from treadle_codegen.targets.rebase import rebased
from treadle_shapes.expr import IntLike, symbol

F32 = torch.float32
I = symbol("i", 0, 7)


def _kernel(first: IntLike, second: IntLike, out: IntLike) -> Kernel:
    body = (
        Instr("load", (), F32, Load("x", first)),
        Instr("load", (), F32, Load("x", second)),
        Instr("add", (0, 1), F32),
        Instr("store", (2,), F32, Store("y", out)),
    )
    return single(Loop("add", (Axis(I, 8),), (), body))


def _bases(kernel: Kernel) -> dict[str, int]:
    return dict(rebased(kernel)[1])


def test_a_base_is_the_least_element_touched() -> None:
    assert _bases(_kernel(I + 24, I + 16, I + 8)) == {"x": 16, "y": 8}
    assert _bases(_kernel(I + 24, I, I + 8)) == {"y": 8}
    assert _bases(_kernel(23 - I, I + 24, I)) == {"x": 16}  # a flipped slice begins where it ends
    assert _bases(_kernel(I - 3, I + 24, I)) == {}  # what a mask keeps from being read
    assert _bases(_kernel(5, 5, I)) == {"x": 5}


def test_kernels_without_bases_stay_as_they_are() -> None:
    kernel = _kernel(I, I + 8, I)
    assert rebased(kernel)[0] is kernel


def test_distances_within_a_buffer_tell_kernels_apart() -> None:
    buffers = {name: Buffer(name, F32, (64,), (1,), BufferKind.TEMP) for name in "xy"}
    program, renderer = Program(buffers, (), (), []), CppRenderer(CodegenOptions(threads=1))

    def function(*indices: IntLike) -> str:
        return renderer.render_kernel(_kernel(*indices), program).function

    assert function(I, I + 8, I) == function(I + 16, I + 24, I + 32)
    assert function(I, I + 8, I) != function(I, I + 16, I)


def _slices(x: Tensor, steps: int) -> Tensor:
    out = [x[0]]
    for n in range(1, steps):
        out.append((out[-1].cumsum(0) + x[n].flip(0)).tanh())
    return torch.stack(out)


def _columns(x: Tensor, steps: int) -> Tensor:
    y = x[:, 0]
    for n in range(1, steps):
        y = (y[:, None] + x[:, n, None].softmax(0)).sum(1) * x[:, n]
    return y


def _padded(x: Tensor, steps: int) -> Tensor:
    y = x[0]
    for n in range(1, steps):
        y = torch.cat([y[1:], x[n][:1]]).cumsum(0) + torch.nn.functional.pad(x[n][2:], (1, 1))
    return y


def _gathered(x: Tensor, steps: int) -> Tensor:
    y = x[0]
    for n in range(1, steps):
        y = x[n].gather(0, (y.abs() * 3).long() % x.shape[1]).cumsum(0) / 16
    return y


@pytest.mark.parametrize("program", [_slices, _columns, _padded, _gathered])
def test_kernels_do_not_grow_with_the_steps(program: Callable[[Tensor, int], Tensor], tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(160, 160, dtype=torch.float64)
    counts = []
    for steps in (80, 160):
        gm = capture(lambda x, steps=steps: program(x, steps), [x])
        compiled = compile_graph(gm, [x], options=CodegenOptions(cache_dir=tmp_path, verify=True, threads=1))
        torch.testing.assert_close(compiled(x)[0], program(x, steps))
        counts.append(compiled.source.count("KERNEL void"))
    # Where the last kernel of many members ends depends on the number of steps.
    assert abs(counts[1] - counts[0]) <= 2
    assert max(counts) <= 12
