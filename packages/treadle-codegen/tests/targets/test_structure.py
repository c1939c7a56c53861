"""Kernels that differ in the names of their buffers alone are rendered once; any other difference keeps them apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from treadle_codegen.ir.loops import Axis, Buffer, BufferKind, Instr, Load, Loop, Program, Store
from treadle_codegen.options import CodegenOptions
from treadle_codegen.schedule.kernel import Kernel, merge_axes, single
from treadle_codegen.targets.cpp.renderer import CppRenderer
from treadle_codegen.targets.structure import structure_of
from treadle_shapes.expr import symbol

F32, F64 = torch.float32, torch.float64
I = symbol("i", 0, 7)


def _loop(x: str, y: str, out: str, number: object = 2.0, extent: int = 8) -> Loop:
    body = (
        Instr("load", (), F32, Load(x, I)),
        Instr("load", (), F32, Load(y, I)),
        Instr("const", (), F32, number),
        Instr("mul", (0, 2), F32),
        Instr("add", (3, 1), F32),
        Instr("store", (4,), F32, Store(out, I)),
    )
    return Loop(f"loop_{out}", (Axis(I, extent),), (), body)


def _kernel(*args: object, **kwargs: object) -> Kernel:
    return merge_axes(single(_loop(*args, **kwargs)))  # type: ignore[arg-type]


def _program(**dtypes: torch.dtype) -> Program:
    names = [f"{kind}{k}" for kind in "xyz" for k in range(4)]
    buffers = {n: Buffer(n, dtypes.get(n, F32), (8,), (1,), BufferKind.TEMP) for n in names}
    return Program(buffers, (), (), [])


def test_names_are_no_part_of_the_structure() -> None:
    program = _program()
    one, buffers = structure_of(_kernel("x0", "y0", "z0"), program)
    other, others = structure_of(_kernel("z0", "y1", "z1"), program)
    assert one == other
    assert (buffers, others) == (("x0", "y0", "z0"), ("z0", "y1", "z1"))


def _in_memory_of(program: Program, output: str, updated: str) -> Program:
    program.in_place = {output: updated}
    return program


def _backward(kernel: Kernel) -> Kernel:
    kernel.is_backward = True
    return kernel


@pytest.mark.parametrize(
    ("kernel", "program"),
    [
        (lambda: _kernel("x1", "x1", "z1"), _program),
        (lambda: _kernel("x1", "y1", "z1", number=-2.0), _program),
        (lambda: _kernel("x1", "y1", "z1", number=2), _program),
        (lambda: _kernel("x1", "y1", "z1", extent=7), _program),
        (lambda: _kernel("x1", "y1", "z1"), lambda: _program(y1=F64)),
        (lambda: _kernel("x1", "y1", "z1"), lambda: _in_memory_of(_program(), "z1", "y1")),
        (lambda: _backward(_kernel("x1", "y1", "z1")), _program),
    ],
    ids=["alias", "number", "type of a number", "extent", "dtype", "one memory", "direction"],
)
def test_anything_else_is(kernel: Callable[[], Kernel], program: Callable[[], Program]) -> None:
    assert structure_of(_kernel("x0", "y0", "z0"), program())[0] != structure_of(kernel(), program())[0]


def test_signed_zeros_differ_and_nans_agree() -> None:
    program = _program()
    zero, negative = (structure_of(_kernel("x0", "y0", "z0", number=n), program)[0] for n in (0.0, -0.0))
    assert zero != negative
    one, other = (structure_of(_kernel(f"x{k}", "y0", "z0", number=math.nan), program)[0] for k in range(2))
    assert one == other


def test_kernels_of_one_structure_are_rendered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    program, renderer, rendered = _program(), CppRenderer(CodegenOptions(threads=1)), []
    original = CppRenderer._render

    def counted(self: CppRenderer, kernel: Kernel, *args: object) -> object:
        rendered.append(kernel.name)
        return original(self, kernel, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(CppRenderer, "_render", counted)
    found = [renderer.render_kernel(_kernel(f"x{k}", "y0", f"z{k}"), program) for k in range(3)]
    assert len(rendered) == 1
    fresh = [
        CppRenderer(CodegenOptions(threads=1)).render_kernel(_kernel(f"x{k}", "y0", f"z{k}"), program) for k in range(3)
    ]
    assert found == fresh
    assert [kernel.buffers for kernel in found] == [(f"x{k}", "y0", f"z{k}") for k in range(3)]


def test_a_loop_keeps_its_accesses_and_its_copies_do_not() -> None:
    from treadle_codegen.schedule.access import loop_reads, loop_writes

    loop = _loop("x0", "y0", "z0")
    assert [read.buffer for read in loop_reads(loop)] == ["x0", "y0"]
    other = replace(loop, body=loop.body[1:])
    assert [read.buffer for read in loop_reads(other)] == ["y0"]
    assert [write.position for write in loop_writes(other)] == [4]
    assert loop == _loop("x0", "y0", "z0")
