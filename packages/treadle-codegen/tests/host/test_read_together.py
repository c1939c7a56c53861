"""Numbers that are read off neighbouring elements of one tensor are read in one call, with the values that single reads give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from aten_capture import capture

from treadle_codegen import CodegenOptions, CompiledGraph, compile_graph
from treadle_codegen.host.read_together import ReadTogether, reads_together
from treadle_codegen.ir.loops import View
from treadle_codegen.ir.text import parse_program
from treadle_codegen.schedule.fuse import fuse
from treadle_shapes import ShapeEnv
from treadle_shapes.torch import fake_mode, fake_shape_env, fake_tensor, symbolic_dispatch

HEAD = "program inputs x, y outputs u0, u1, u2\nruntime u0 None None\nruntime u1 None None\nruntime u2 None None\n"
INPUTS = "input x : int64 [9] strides [1] offset 0\ninput y : int64 [9] strides [1] offset 0\n"


def read(symbol: str, buffer: str, offset: int) -> str:
    return f"""\
extern item_{symbol} aten._local_scalar_dense.default (view({buffer}, [], [], {offset}), ) {{}} ->  origins a
  bind {symbol} 0 None 1 'x'
"""


def groups(*reads: str, covered: tuple[int, ...] = ()) -> dict[int, ReadTogether]:
    program = parse_program(HEAD + INPUTS + "".join(reads))
    return reads_together(fuse(program, max_members=1), program.buffers, covered)


def test_elements_at_equal_distances_are_read_by_one_call():
    found = groups(read("u0", "x", 7), read("u1", "x", 1), read("u2", "x", 4))
    assert found == {0: ReadTogether(View("x", (3,), (3,), 1), {0: 2, 1: 0, 2: 1})}


def test_other_elements_and_those_of_different_tensors_are_read_one_by_one():
    assert groups(read("u0", "x", 0), read("u1", "x", 1), read("u2", "x", 3)) == {}
    assert groups(read("u0", "x", 0), read("u1", "y", 1)) == {}


def test_numbers_that_kernels_read_are_left_out():
    assert groups(read("u0", "x", 0), read("u1", "x", 1), read("u2", "x", 2), covered=(1,)) == {}


def compiled(fn: Any, x: torch.Tensor, cache: Path) -> CompiledGraph:
    mode = fake_mode(shape_env=fake_shape_env(ShapeEnv(), allow_scalar_outputs=True))
    with symbolic_dispatch():
        graph = capture(fn, [fake_tensor(mode, x, (None,) * x.dim())], mode=mode)
    return compile_graph(graph, [x], options=CodegenOptions(threads=1, cache_dir=cache, verify=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.uint8])
@pytest.mark.parametrize("is_computed", [False, True])
def test_values(dtype: torch.dtype, is_computed: bool, tmp_path: Path) -> None:
    def fn(x: torch.Tensor) -> Any:
        y = x.sort().values if is_computed else x
        numbers = [y[k].item() for k in (5, 1, 3)]
        return torch.full((2,), numbers[0] + 2 * numbers[1] - numbers[2])

    x = torch.tensor([11, 7, 5, 3, 9, 4, 2, 8])[::1].to(dtype)
    run = compiled(fn, x, tmp_path)
    for values in (x, x + 1):
        torch.testing.assert_close(run(values)[0], fn(values))
