"""Functions for groups of numbers: what they do with operations that they lack, and with checks of numbers that they are given."""

from __future__ import annotations

import torch

from treadle_codegen.ir.loops import Bind, Buffer, BufferKind, Check, Extern, Program, View
from treadle_codegen.options import CodegenOptions
from treadle_codegen.targets.cpp.build import build_library
from treadle_codegen.targets.cpp.renderer import CppRenderer
from treadle_codegen.targets.renderer import NumberGroup, Segment
from treadle_codegen.targets.table_slots import slot_key
from treadle_shapes.floats import compare, float_fn, float_symbol

RATE, STEP = float_symbol("rate"), float_symbol("step")
BUFFER = Buffer("t", torch.float32, (), (), BufferKind.INPUT)
PROGRAM = Program({"t": BUFFER}, ("t",), (), [])
ITEM = torch.ops.aten._local_scalar_dense.default
READ = Extern("read", ITEM, (View("t", (), ()),), {}, ("",), binds=(Bind(STEP, 0, None),))


def test_a_group_that_only_checks_reports() -> None:
    group = NumberGroup((Check("check", compare("lt", RATE, 10.0), "too fast"),), (RATE,), ())
    renderer = CppRenderer(CodegenOptions(threads=1))
    kernel = renderer.render_numbers(group, PROGRAM)
    assert kernel is not None and kernel.numbers == (RATE,) and not kernel.results
    source = renderer.render_unit([Segment("segment_0", (kernel,), (group,))], {slot_key(RATE): 1}, {})
    build_library(source, CodegenOptions(threads=1), 1)
    assert f"{kernel.function}(*(const double*)(p + 1), (i64*)p[0]);" in source


def test_what_has_no_equal_in_c_is_left_to_the_host() -> None:
    renderer = CppRenderer(CodegenOptions(threads=1))
    for result in (float_fn("math_gamma", STEP), float_fn("ffloordiv", STEP, 2.0), float_fn("fmod", STEP, 2.0)):
        assert renderer.render_numbers(NumberGroup((READ,), (), (STEP, result)), PROGRAM) is None
    assert renderer.render_numbers(NumberGroup((READ,), (), (STEP,)), PROGRAM) is not None


def test_only_float_tensors_are_read() -> None:
    whole = Program({"t": Buffer("t", torch.int64, (), (), BufferKind.INPUT)}, ("t",), (), [])
    group = NumberGroup((READ,), (), (STEP,))
    assert CppRenderer(CodegenOptions(threads=1)).render_numbers(group, whole) is None
