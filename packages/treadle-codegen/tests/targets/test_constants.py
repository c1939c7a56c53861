"""Kernels that differ in constants alone are one function; the bits of its results are those of functions with literals."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from aten_capture import capture
from torch import Tensor

from treadle_codegen import CodegenOptions, compile_graph
from treadle_codegen.compiled_graph import CompiledGraph
from treadle_codegen.ir.loops import Axis, Buffer, BufferKind, Instr, Load, Loop, Program, Store
from treadle_codegen.schedule.kernel import Kernel, single
from treadle_codegen.targets.constants import ConstantArgument, open_constants, share_constants
from treadle_codegen.targets.cpp.renderer import CppRenderer
from treadle_shapes.expr import symbol

F32, I64 = torch.float32, torch.int64
I = symbol("i", 0, 7)


def _loop(*constants: object, op: str = "mul", dtype: torch.dtype = F32) -> Loop:
    """x[i] `op` c for each constant c in turn."""
    body = [Instr("load", (), dtype, Load("x", I))]
    for value in constants:
        last = len(body) - 1
        body += [Instr("const", (), dtype, value), Instr(op, (last, len(body)), dtype)]
    body.append(Instr("store", (len(body) - 1,), dtype, Store("y", I)))
    return Loop("loop", (Axis(I, 8),), (), tuple(body))


def _shared(*loops: Loop, dtype: torch.dtype = F32) -> list[Kernel]:
    buffers = {name: Buffer(name, dtype, (8,), (1,), BufferKind.TEMP) for name in "xy"}
    return share_constants([(single(loop), None) for loop in loops], Program(buffers, (), (), []))


def _attributes(kernel: Kernel) -> list[object]:
    return [instr.attr for instr in kernel.loops[0].body if instr.op == "const"]


def test_what_differs_is_an_argument() -> None:
    first, second = _shared(_loop(0.5, 3.0), _loop(0.25, 3.0))
    assert _attributes(first) == _attributes(second) == [ConstantArgument(0), 3.0]
    assert [kernel.literals for kernel in (first, second)] == [((0.5, F32),), ((0.25, F32),)]


def test_numbers_that_are_equal_in_every_kernel_are_one_argument() -> None:
    assert _attributes(_shared(_loop(0.5, 0.5), _loop(0.25, 0.25))[0]) == [ConstantArgument(0)] * 2
    assert _attributes(_shared(_loop(0.5, 0.5), _loop(0.25, 0.75))[0]) == [ConstantArgument(0), ConstantArgument(1)]


def test_a_kernel_that_has_no_equal_keeps_its_constants() -> None:
    for loops in ([_loop(0.5)], [_loop(0.5), _loop(0.5)], [_loop(0.5), _loop(0.25, op="add")]):
        assert not any(kernel.literals for kernel in _shared(*loops))


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, True])
def test_numbers_that_make_operations_simpler_stay(value: object) -> None:
    assert open_constants(_loop(value, 3.0)) == [3]


@pytest.mark.parametrize(("op", "dtype"), [("remainder", I64), ("shl", I64), ("pow", F32), ("atan2", F32)])
def test_constants_that_decide_how_code_is_compiled_stay(op: str, dtype: torch.dtype) -> None:
    assert open_constants(_loop(3, op=op, dtype=dtype)) == []


def test_what_is_computed_from_constants_decides_as_they_do() -> None:
    body = [Instr("const", (), F32, 2.5), Instr("const", (), F32, 3.5), Instr("mul", (0, 1), F32)]
    to_int = Instr("cast", (2,), I64, I64)
    assert open_constants(Loop("loop", (Axis(I, 8),), (), tuple(body))) == [0, 1]
    assert open_constants(Loop("loop", (Axis(I, 8),), (), (*body, Instr("sin", (2,), F32)))) == []
    assert open_constants(Loop("loop", (Axis(I, 8),), (), (*body, to_int))) == []


SCHEDULE = [0.9, 0.5, 1e-3, -0.25, 2, 0.0, 1.0, -0.0, 1e-40, 1e30, *(0.3 + k / 7 for k in range(12))]


def _diffusion(x: Tensor) -> Tensor:
    for t, a in enumerate(SCHEDULE):
        x = (a * x + (1 - a) * (x * (t + 0.5)).tanh()).cumsum(-1)
    return x


def _rows(x: Tensor) -> Tensor:
    found = []
    for t, a in enumerate(SCHEDULE):
        x = ((x * a + t).softmax(-1) * (t + 2) - x.mean(-1, keepdim=True) * a).cumsum(-1)
        found.append(x)
    return torch.stack(found)


def _filled(x: Tensor) -> Tensor:
    found = []
    for t, a in enumerate(SCHEDULE):
        time = torch.full_like(x, t / 7)
        x = torch.where(x > a, time * x, time * (a + 0.5)).cumsum(-1)
        found.append(x.clamp(max=a) / (t + 3))
    return torch.stack(found)


def _integers(x: Tensor) -> Tensor:
    y = (x * 10).long()
    found = []
    for t in range(12):
        y = (y * (t + 3) + 2**t) // (t + 2) + (y & (t + 5))
        found.append(y.gather(1, (y.abs() + t + 2) % y.shape[1]) + t * 7)
    return torch.stack(found)


PROGRAMS = [_diffusion, _rows, _filled, _integers]


def _compiled(
    program: Callable[[Tensor], Tensor], x: Tensor, path: Path, patch: pytest.MonkeyPatch, *, shares: bool
) -> CompiledGraph:
    patch.setattr(CppRenderer, "shares_constants", shares)
    options = CodegenOptions(cache_dir=path, verify=True, threads=1)
    return compile_graph(capture(program, [x]), [x], options=options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("program", PROGRAMS)
def test_shared_kernels_compute_the_same_bits(
    program: Callable[[Tensor], Tensor], dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 17).to(dtype)
    apart = _compiled(program, x, tmp_path / "apart", monkeypatch, shares=False)
    shared = _compiled(program, x, tmp_path / "shared", monkeypatch, shares=True)
    assert shared.source.count("KERNEL void") < apart.source.count("KERNEL void")
    (expected,), (actual,) = apart(x), shared(x)
    assert torch.equal(actual.nan_to_num(), expected.nan_to_num())
    assert torch.equal(actual.signbit(), expected.signbit())


def test_a_shared_kernel_comes_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(6, 17)
    first = _compiled(_diffusion, x, tmp_path, monkeypatch, shares=True)
    again = _compiled(_diffusion, x, tmp_path, monkeypatch, shares=True)
    assert again.cache_hits == 1
    assert torch.equal(first(x)[0], again(x)[0])
