"""The text form: golden output, reading back, and what it says about text that is no program."""

from __future__ import annotations

import pytest
import torch
from aten_capture import capture

from treadle_codegen.ir.text import ParseError, format_program, parse_program
from treadle_codegen.lower import lower_graph

GOLDEN = """\
program inputs arg0 outputs view(sum_dim_int_list, [4], [1], 0)
input arg0 : float32 [4, 8] strides [8, 1] offset 0
output sum_dim_int_list : float32 [4] strides [1] offset 0
loop loop_sum_dim_int_list [i0:4] reduce [r0:8] origins relu_default, sum_dim_int_list
  %0 = load arg0[8*i0 + r0] : float32
  %1 = const 0.0 : float32
  %2 = maximum %1 %0 : float32
  %3 = reduce sum %2 : float32
  %4 = store sum_dim_int_list[i0] %3 : float32
"""


def test_text_of_a_reduction() -> None:
    program = lower_graph(capture(lambda x: torch.relu(x).sum(1), [torch.randn(4, 8)]))
    assert format_program(program) == GOLDEN


FUNCTIONS = {
    "padding and infinities": (
        lambda x: torch.nn.functional.max_pool2d(x.view(1, 1, 6, 6), 3, 2, 1) + float("inf"),
        [torch.randn(36)],
    ),
    "externs with lists, floats and None": (
        lambda x, i: torch.ops.aten.index_put(x @ x.t(), [i, None], x[0, :2].sum(), True).cumsum(0),
        [torch.randn(4, 4), torch.tensor([0, 1])],
    ),
    "gathers": (
        lambda x, i: x[i] * torch.nn.functional.embedding(i, x),
        [torch.randn(5, 3), torch.tensor([1, -2, 0])[:1]],
    ),
    "integers and casts": (lambda x: (x * 3 // 2).to(torch.float64) > 1, [torch.arange(9)]),
    "convolution": (lambda x, w: torch.conv2d(x, w, padding=1), [torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)]),
    "memory format": (
        lambda x: x.cumsum(1).clone(memory_format=torch.channels_last),
        [torch.randn(1, 2, 3, 3)],
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_reads_back(name: str) -> None:
    function, tensors = FUNCTIONS[name]
    program = lower_graph(capture(function, tensors))
    text = format_program(program)
    back = parse_program(text, program.constants)
    assert format_program(back) == text
    assert back.steps == program.steps
    assert back.buffers == program.buffers
    assert back.outputs == program.outputs
    assert back.inputs == program.inputs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("loop a [] reduce [] origins", "first line"),
        ("program inputs x outputs \ninput x float32", "not a buffer"),
        ("program inputs  outputs \nloop a reduce", "not a loop"),
        ("program inputs  outputs \nloop a [] reduce [] origins\n  %0 = frobnicate : float32", "not an instruction"),
        ("program inputs  outputs \nextern a", "not an extern call"),
    ],
)
def test_wrong_text(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        parse_program(text)
