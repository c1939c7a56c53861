"""The operators taken apart: what the table holds, and that the parts agree with the whole."""

from __future__ import annotations

import operator_samples
import pytest
import torch
from aten_capture import capture
from torch.utils._pytree import tree_leaves

import treadle_codegen
from treadle_codegen.interpret import interpret
from treadle_codegen.ir.loops import Extern
from treadle_codegen.lower import lower_graph
from treadle_codegen.lower.registry import LOWERINGS

LOOPS_ONLY = [
    "nn.functional.celu",
    "nn.functional.glu",
    "heaviside",
    "special.xlog1py",
    "special.entr",
    "rot90",
]
LOOPS_ONLY += ["nn.functional.mse_loss", "nn.functional.huber_loss", "linspace"]


def test_nothing_in_the_table_has_a_lowering_or_mutates() -> None:
    table = treadle_codegen.decompositions()
    assert torch.ops.aten.gelu_backward.default in table
    assert not [op for op in table if str(op) in LOWERINGS or op._schema.is_mutable]


@pytest.mark.parametrize("name", LOOPS_ONLY)
def test_parts_become_loops_that_agree_with_eager(name: str) -> None:
    for function, tensors in operator_samples.samples(name, torch.float32, 3):
        program = lower_graph(capture(function, tensors, decompositions=treadle_codegen.decompositions()))
        assert not [str(s.op) for s in program.steps if isinstance(s, Extern)]
        for actual, wanted in zip(interpret(program, tensors), tree_leaves(function(*tensors)), strict=True):
            torch.testing.assert_close(actual, wanted, check_stride=False)


@pytest.mark.parametrize("name", ["_softmax_backward_data", "_log_softmax_backward_data"])
def test_gradients_of_softmax_are_row_major_whatever_comes_in(name: str) -> None:
    whole = getattr(torch.ops.aten, name).default
    grad, output = torch.randn(4, 3, 5).transpose(0, 1), torch.randn(3, 4, 5).softmax(-1)
    parts = treadle_codegen.decompositions()[whole]
    found, wanted = (run(grad, output, 2, torch.float32) for run in (parts, whole))
    torch.testing.assert_close(found, wanted)
    assert found.stride() == wanted.stride()
