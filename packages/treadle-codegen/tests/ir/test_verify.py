"""The verifier accepts what lowering makes and finds every planted fault."""

from __future__ import annotations

import re

import pytest
import torch
from aten_capture import capture

from treadle_codegen.ir.text import format_program, parse_program
from treadle_codegen.ir.verify import verify
from treadle_codegen.lower import lower_graph

TEXT = """\
program inputs x, n outputs view(out, [4], [1], 0)
input x : float32 [4, 8] strides [8, 1] offset 0
input n : int64 [4] strides [1] offset 0
temp t : float32 [4] strides [1] offset 0
output out : float32 [4] strides [1] offset 0
loop first [i0:4] reduce [r0:8] origins a
  %0 = load x[8*i0 + r0] : float32
  %1 = const 2.0 : float32
  %2 = mul %0 %1 : float32
  %3 = reduce sum %2 : float32
  %4 = sqrt %3 : float32
  %5 = store t[i0] %4 : float32
loop second [i0:4] reduce [] origins b
  %0 = load t[i0] : float32
  %1 = load n[i0] : int64
  %2 = indirect_load x strides [8, 1] sizes [4, 8] %1 %1 : float32
  %3 = add %0 %2 : float32
  %4 = lt %3 %0 : bool
  %5 = where %4 %3 %0 : float32
  %6 = store out[i0] %5 : float32
"""

FAULTS = [
    ("%4 = sqrt %3 : float32", "%4 = add %3 %2 : float32", "depends on the reduce axes"),
    ("%2 = mul %0 %1 : float32", "%2 = mul %0 %5 : float32", "not all earlier"),
    ("%2 = mul %0 %1 : float32", "%2 = mul %0 : float32", "takes 2 arguments"),
    ("%2 = mul %0 %1 : float32", "%2 = mul %0 %1 : float64", "dtype"),
    ("%1 = const 2.0 : float32", "%1 = const 2.0 : bfloat16", "constant of torch.bfloat16"),
    ("%3 = reduce sum %2", "%3 = reduce median %2", "no reduction 'median'"),
    ("%3 = reduce sum %2", "%3 = reduce any %2", "any of torch.float32"),
    ("%3 = reduce sum %2", "%3 = reduce argmax %2", "gives torch.int64"),
    ("reduce [r0:8] origins a", "reduce [r0:9] origins a", "covers 0..32"),
    ("x[8*i0 + r0]", "x[8*i0 + r0 - 1]", "covers -1"),
    ("store t[i0] %4 : float32", "store x[i0] %4 : float32", "writes input buffer x"),
    ("store t[i0] %4 : float32", "store y[i0] %4 : float32", "no buffer y"),
    ("load t[i0]", "load out[i0]", "both loads and stores out"),
    ("loop second", "loop first", "two steps have this name"),
    ("loop second [i0:4] reduce []", "loop second [i0:4, i1:1] reduce []", "extent 1"),
    ("%0 = load t[i0] : float32", "%0 = load n[i0] : float32", "is torch.int64, not torch.float32"),
    ("strides [8, 1] sizes [4, 8] %1 %1", "strides [8, 1] sizes [4, 8] %1", "2 strides for 1 indices"),
    ("strides [8, 1] sizes [4, 8] %1 %1", "strides [8, 1] sizes [4, 8] %1 %0", "indices must be int64"),
    ("%4 = lt %3 %0 : bool", "%4 = lt %3 %0 : float32", "result must be bool"),
    ("%5 = where %4 %3 %0", "%5 = where %3 %3 %0", "condition must be bool"),
    ("view(out, [4], [1], 0)", "view(out, [5], [1], 0)", "reaches element 4"),
    ("view(out, [4], [1], 0)", "view(t, [4], [1], 0)", "buffer t is temp"),
    ("view(out, [4], [1], 0)", "view(out, [4], [1], 0), view(out, [4], [1], 0)", "belongs to another output"),
    ("inputs x, n", "inputs x", "input that is not listed"),
    ("store out[i0] %5", "store t[i0] %5", "never written"),
    ("%6 = store out[i0] %5 : float32", "%6 = store out[i0] %5 : float32\n  %7 = neg %6 : float32", "value of a store"),
]


def test_the_sample_is_well_formed() -> None:
    program = parse_program(TEXT)
    assert format_program(program) == TEXT
    assert verify(program) == []


@pytest.mark.parametrize(("old", "new", "message"), FAULTS, ids=[f[2] for f in FAULTS])
def test_planted_faults_are_found(old: str, new: str, message: str) -> None:
    assert TEXT.count(old) >= 1
    problems = verify(parse_program(TEXT.replace(old, new)))
    assert any(re.search(re.escape(message), problem) for problem in problems), problems


def test_read_before_written() -> None:
    first, second = TEXT.index("loop first"), TEXT.index("loop second")
    swapped = TEXT[:first] + TEXT[second:] + TEXT[first:second]
    assert any("reads t before it is written" in problem for problem in verify(parse_program(swapped)))


def test_reduce_without_axes_and_axes_without_reduce() -> None:
    without_axes = TEXT.replace("reduce [r0:8] origins a", "reduce [] origins a").replace("8*i0 + r0", "8*i0")
    assert any("reduces without reduce axes" in p for p in verify(parse_program(without_axes)))
    without_reduce = TEXT.replace("%3 = reduce sum %2 : float32", "%3 = neg %1 : float32")
    assert any("has reduce axes and no reduce" in p for p in verify(parse_program(without_reduce)))


def test_extern_faults() -> None:
    program = lower_graph(capture(lambda x: torch.relu(x @ x), [torch.randn(3, 3)]))
    assert verify(program) == []
    text = format_program(program)
    assert any(
        "before it is written" in p for p in verify(parse_program(text.replace("(view(arg0", "(view(relu_default")))
    )
    assert any("writes input" in p for p in verify(parse_program(text.replace("-> mm_default", "-> arg0"))))
    assert any("1 out arguments" in p for p in verify(parse_program(text.replace("-> mm_default", "-> mm_default, _"))))
