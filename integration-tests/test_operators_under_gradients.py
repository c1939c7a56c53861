"""PyTorch's own operator samples through the whole stack while autograd records: results require gradients where eager's do.

The tracer decides by its fake tensors whether a graph is trained; what it forgets there has no gradient.
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from operator_infos import op_db
from torch.utils import _pytree as pytree

import treadle

CHUNKS = 8
OPERATORS = [op for op in op_db if op.supports_autograd and torch.float32 in op.supported_dtypes("cpu")]


def _copies(sample: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    return pytree.tree_map_only(
        torch.Tensor,
        lambda tensor: tensor.detach().clone().requires_grad_(tensor.requires_grad),
        (sample.input, sample.args, sample.kwargs),
    )


def _requiring(results: Any) -> list[bool]:
    return [value.requires_grad for value in pytree.tree_leaves(results) if isinstance(value, torch.Tensor)]


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_results_require_gradients_as_in_eager(chunk):
    checked = 0
    for op in OPERATORS[chunk::CHUNKS]:
        for sample in itertools.islice(op.sample_inputs("cpu", torch.float32, requires_grad=True), 1):
            for function in filter(None, (op.op, op.method_variant)):

                def program(first, args, kwargs, function=function):
                    return function(first, *args, **kwargs)

                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    try:
                        expected = _requiring(program(*_copies(sample)))
                    except (
                        RuntimeError,
                        ValueError,
                        IndexError,
                        TypeError,
                        NotImplementedError,
                    ):  # a sample of an error
                        continue
                    treadle.reset()
                    compiled = treadle.compile(program, backend="aot_eager")
                    assert _requiring(compiled(*_copies(sample))) == expected, op.name
                checked += 1
    assert checked > 40
