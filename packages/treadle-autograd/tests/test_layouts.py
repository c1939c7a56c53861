"""Strides along sizes of 0 and 1 are eager's."""

from __future__ import annotations

import pytest
import torch
from aten_runner import compile_traced
from torch.nn import functional as F


def strided(*dims):
    """A tensor from (size, stride) pairs."""
    return torch.empty_strided([n for n, _ in dims], [s for _, s in dims]).fill_(1.0)


CASES = {
    "attention": (
        lambda q: F.scaled_dot_product_attention(q, q, q).transpose(1, 2).reshape(1, 1, 8),
        torch.ones(1, 2, 1, 4),
    ),
    "view to its own sizes": (lambda x: (x + 0).view(1, 1, 10), strided((1, 50), (1, 10), (10, 1))),
    "flattened": (lambda x: (x * 1).flatten(0, 1), strided((1, 25), (1, 5), (1, 1))),
    "nothing": (lambda x: (x * 1).view(0, 0, 10), strided((0, 0), (0, 10), (10, 1))),
    "filled": (lambda x: torch.full_like(x, 3.0), strided((1, 5), (1, 1))),
    "zeros": (lambda x: torch.zeros_like(x), strided((1, 3), (0, 3), (1, 1))),
    "ones of another dtype": (lambda x: torch.ones_like(x, dtype=torch.bool), strided((1, 3), (0, 3), (1, 1))),
    "fill": (lambda x: torch.fill(x, 3.0), strided((1, 7), (4, 1))),
    "written": (lambda x: x.index_put((torch.tensor([0]),), torch.ones(1)), strided((1, 5), (1, 1))),
    "flipped": (lambda x: x.flip(0), strided((1, 50), (10, 5), (1, 5))),
    "sorted": (lambda x: (lambda r: (r[0], r[1]))(x.sort(0)), strided((1, 25), (1, 5), (1, 1))),
    "frexp": (lambda x: (lambda r: (r[0], r[1]))(torch.frexp(x)), strided((1, 3), (0, 3), (1, 1))),
    "nan_to_num": (lambda x: torch.nan_to_num(x), strided((1, 3), (0, 3), (1, 1))),
    "copied, rows first": (lambda x: torch.full_like(x, 3.0), strided((2, 1), (3, 2), (1, 9))),
    "gaps": (lambda x: torch.full_like(x, 3.0), strided((2, 8), (3, 2), (1, 9))),
    "another format": (
        lambda x: torch.zeros_like(x, memory_format=torch.contiguous_format),
        strided((2, 1), (3, 2), (1, 9)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_outputs_have_eagers_strides(name):
    function, x = CASES[name]
    expected = function(x)
    compiled = compile_traced(function, [x])
    assert compiled.why_eager is None
    for mine, theirs in zip(compiled(x), expected if isinstance(expected, tuple) else (expected,), strict=True):
        assert mine.shape == theirs.shape and mine.stride() == theirs.stride()
    outputs = [n.meta["val"].stride() for n in compiled.aten_graph.graph.output_node().args[0]]
    assert outputs == [t.stride() for t in (expected if isinstance(expected, tuple) else (expected,))]
