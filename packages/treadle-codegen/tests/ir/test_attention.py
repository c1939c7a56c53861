"""Attention as a loop: its axes, what is none, and its meaning against ATen."""

from __future__ import annotations

import pytest
import torch

from treadle_codegen.interpret import interpret
from treadle_codegen.ir.attention import Attention, attention_of, is_attention, multiplies_tiles, why_not_attention
from treadle_codegen.ir.loops import Loop, Program
from treadle_codegen.ir.text import format_program, parse_program
from treadle_codegen.ir.verify import verify

PROGRAM = """
program inputs q, k, v outputs view(y, [3, 5, 4], [20, 4, 1], 0)
input q : float16 [3, 5, 8] strides [40, 8, 1] offset 0
input k : float16 [3, 7, 8] strides [56, 8, 1] offset 0
input v : float16 [3, 7, 4] strides [28, 4, 1] offset 0
output y : float16 [3, 5, 4] strides [20, 4, 1] offset 0
loop attention [i0:3, i1:5, i2:4] reduce [r0:7, r1:8] origins
  %0 = load q[40*i0 + 8*i1 + r1] : float16
  %1 = load k[56*i0 + 8*r0 + r1] : float16
  %2 = inner_dot %0 %1 : float32
  %3 = index i1 : int64
  %4 = index r0 : int64
  %5 = gt %3 %4 : bool
  %6 = const -inf : float32
  %7 = where %5 %2 %6 : float32
  %8 = load v[28*i0 + 4*r0 + i2] : float16
  %9 = reduce softmax_dot %7 %8 : float32
  %10 = cast %9 : float16
  %11 = store y[20*i0 + 4*i1 + i2] %10 : float16
"""


def program_of(text: str = PROGRAM) -> Program:
    return parse_program(text)


def loop_of(text: str = PROGRAM) -> Loop:
    (loop,) = program_of(text).steps
    assert isinstance(loop, Loop)
    return loop


def names(axes: tuple[object, ...]) -> list[str]:
    return [str(axis.symbol) for axis in axes]  # type: ignore[attr-defined]


def test_roles_of_axes() -> None:
    found = attention_of(loop_of())
    assert isinstance(found, Attention)
    assert (found.position, found.inner, str(found.terms.symbol)) == (9, 2, "r1")
    assert [names(a) for a in (found.batch, found.rows, found.columns, found.keys)] == [["i0"], ["i1"], ["i2"], ["r0"]]


def test_heads_that_share_keys_and_values_are_rows() -> None:
    found = attention_of(loop_of(PROGRAM.replace("56*i0 + ", "").replace("28*i0 + ", "")))
    assert isinstance(found, Attention)
    assert (names(found.batch), names(found.rows)) == ([], ["i0", "i1"])


def test_heads_with_many_queries_are_a_batch() -> None:
    text = PROGRAM.replace("56*i0 + ", "").replace("28*i0 + ", "").replace("i1:5", "i1:500")
    found = attention_of(loop_of(text))
    assert isinstance(found, Attention)
    assert (names(found.batch), names(found.rows)) == (["i0"], ["i1"])


@pytest.mark.parametrize("kind", ["softmax_dot", "safe_softmax_dot"])
def test_interpreter_agrees_with_aten(kind: str) -> None:
    program = program_of(PROGRAM.replace("softmax_dot", kind))
    assert not verify(program)
    assert parse_program(format_program(program)) == program
    q, k, v = [torch.randn(3, n, d).half() for n, d in ((5, 8), (7, 8), (7, 4))]
    scores = q.double() @ k.double().mT
    scores = scores.masked_fill(torch.ones(5, 7).tril(-1) == 0, -torch.inf)
    weights = torch._safe_softmax(scores, -1) if kind.startswith("safe") else scores.softmax(-1)
    (found,) = interpret(program, [q, k, v])
    torch.testing.assert_close(found, (weights @ v.double()).half(), equal_nan=True, rtol=1e-3, atol=1e-3)
    assert bool(found[:, 0].isnan().all()) is (kind == "softmax_dot")


WRONG = {
    "scores of 0 matrix products": ("%2 = inner_dot %0 %1 : float32", "%2 = const 1.0 : float32"),
    "axes of keys and one of terms": ("reduce [r0:7, r1:8]", "reduce [r0:7]", " + r1", ""),
    "does not vary along its reduce axes": ("load v[28*i0 + 4*r0 + i2]", "load v[28*i0 + i2]"),
    "varies along the axes of another one": ("load q[40*i0 + 8*i1 + r1]", "load q[8*r0 + r1]"),
    "without rows or columns": ("28*i0 + 4*r0 + i2]", "4*r0 + i2 + i1]"),
}


@pytest.mark.parametrize("reason", WRONG)
def test_what_is_no_attention(reason: str) -> None:
    text, changes = PROGRAM, WRONG[reason]
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        text = text.replace(old, new)
    found = why_not_attention(loop_of(text))
    assert found is not None
    assert reason in found
    assert any(reason in problem for problem in verify(program_of(text)))


def test_other_reductions_are_none() -> None:
    loop = loop_of(PROGRAM.replace("softmax_dot %7 %8", "sum %7"))
    assert not is_attention(loop) and not multiplies_tiles(loop)
    assert why_not_attention(loop) == "an attention is the only reduction of its loop"
    assert is_attention(loop_of()) and multiplies_tiles(loop_of())
