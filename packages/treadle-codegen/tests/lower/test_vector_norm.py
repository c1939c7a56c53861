"""Norms of vectors of one element are absolute values, whose squares may be too large or too small for the dtype."""

from __future__ import annotations

import math

import pytest
import torch
from aten_capture import capture

from treadle_codegen.interpret import interpret
from treadle_codegen.ir.ops import BUFFER_DTYPES
from treadle_codegen.lower import lower_graph


@pytest.mark.parametrize("order", [2, 1, 3, 0.5, -1, math.inf, -math.inf])
@pytest.mark.parametrize("shape", [(4, 1), (1, 4, 1), ()])
def test_of_one_element(shape: tuple[int, ...], order: float) -> None:
    values = torch.tensor([1e38, -1e-30, -2.0, math.inf])[: math.prod(shape)].view(shape)
    dims = [d for d, size in enumerate(shape) if size == 1]
    graph = capture(lambda x: torch.linalg.vector_norm(x, order, dims), [values])
    program = lower_graph(graph, dtypes=frozenset(BUFFER_DTYPES))
    (norm,) = interpret(program, [values])
    assert torch.equal(norm, torch.linalg.vector_norm(values, order, dims))
    assert torch.equal(norm, values.abs().squeeze())
