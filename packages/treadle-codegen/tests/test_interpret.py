"""The reference interpreter on programs written by hand: values, poison and the faults it must notice."""

from __future__ import annotations

import pytest
import torch

from treadle_codegen.interpret import interpret
from treadle_codegen.ir.text import parse_program


def run(body: str, *inputs: torch.Tensor) -> torch.Tensor:
    return interpret(parse_program(body), inputs)[0]


HEADER = """\
program inputs x outputs view(out, [3], [1], 0)
input x : float32 [3, 4] strides [4, 1] offset 0
output out : float32 [3] strides [1] offset 0
"""


def test_reduction_with_epilogue() -> None:
    x = torch.randn(3, 4)
    text = HEADER + (
        "loop a [i0:3] reduce [r0:4] origins\n  %0 = load x[4*i0 + r0] : float32\n  %1 = reduce max %0 : float32\n"
        "  %2 = const 2.0 : float32\n  %3 = mul %1 %2 : float32\n  %4 = store out[i0] %3 : float32\n"
    )
    torch.testing.assert_close(run(text, x), x.amax(1) * 2)


def test_positions_are_row_major_over_the_reduce_axes() -> None:
    text = """\
program inputs x outputs view(out, [], [], 0)
input x : float32 [3, 4] strides [4, 1] offset 0
output out : int64 [] strides [] offset 0
loop a [] reduce [r0:3, r1:4] origins
  %0 = load x[4*r0 + r1] : float32
  %1 = reduce argmax %0 : int64
  %2 = store out[0] %1 : int64
"""
    x = torch.zeros(3, 4)
    x[2, 1] = x[2, 3] = 1  # the first of equals
    assert run(text, x).item() == 9
    x[1, 0] = float("nan")
    assert run(text, x).item() == 4


def test_masked_loads_do_not_read_outside() -> None:
    text = """\
program inputs x outputs view(out, [6], [1], 0)
input x : float32 [4] strides [1] offset 0
output out : float32 [6] strides [1] offset 0
loop a [i0:6] reduce [] origins
  %0 = masked_load x[i0 - 1] if i0 >= 1 and i0 <= 4 else 7.0 : float32
  %1 = store out[i0] %0 : float32
"""
    assert run(text, torch.arange(4.0)).tolist() == [7, 0, 1, 2, 3, 7]


def test_unwritten_elements_are_poisoned() -> None:
    text = HEADER + "loop a [i0:2] reduce [] origins\n  %0 = const 1.0 : float32\n  %1 = store out[i0] %0 : float32\n"
    assert run(text, torch.randn(3, 4)).isnan().tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ("%0 = load x[i0 + 10] : float32\n  %1 = store out[i0] %0 : float32", AssertionError, "outside of its buffer"),
        ("%0 = load x[i0] : float32\n  %1 = store out[i0 // 2] %0 : float32", AssertionError, "same element"),
        (
            "%0 = index i0 + 1 : int64\n  %1 = indirect_load x strides [4] sizes [3] %0 : float32\n  %2 = store out[i0] %1 : float32",
            IndexError,
            "out of range",
        ),
    ],
)
def test_faults_are_noticed(body: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        run(HEADER + f"loop a [i0:3] reduce [] origins\n  {body}\n", torch.randn(3, 4))


def test_scatter_adds() -> None:
    text = """\
program inputs x, n outputs view(out, [3], [1], 0)
input x : float32 [4] strides [1] offset 0
input n : int64 [4] strides [1] offset 0
output out : float32 [3] strides [1] offset 0
loop zero [i0:3] reduce [] origins
  %0 = const 0.0 : float32
  %1 = store out[i0] %0 : float32
loop add [i0:4] reduce [] origins
  %0 = load x[i0] : float32
  %1 = load n[i0] : int64
  %2 = indirect_store out strides [1] sizes [3] add %0 %1 : float32
"""
    out = interpret(parse_program(text), [torch.ones(4), torch.tensor([0, 2, 2, 2])])[0]
    assert out.tolist() == [1, 0, 3]
