"""Strides along sizes of 0 and 1 are eager's."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from aten_runner import compile_traced
from torch.nn import functional as F

from treadle_autograd.layouts import view_strides


def strided(*dims):
    """A tensor from (size, stride) pairs."""
    return torch.empty_strided([n for n, _ in dims], [s for _, s in dims]).fill_(1.0)


def test_strides_of_views_are_eagers():
    generator = random.Random(0)
    possible = 0
    for _ in range(3000):
        sizes = [generator.choice([1, 1, 2, 3, 4]) for _ in range(generator.randint(1, 4))]
        order = generator.sample(range(len(sizes)), len(sizes))
        strides, step = [0] * len(sizes), 1
        for d in order:
            strides[d] = generator.choice([step, step, 7]) if sizes[d] == 1 else step
            step *= sizes[d]
        x = torch.empty_strided(sizes, strides)
        factors = [f for n in sizes for f in ((2, 2) if n == 4 else (n,))]
        cuts = sorted(generator.choices(range(len(factors) + 1), k=generator.randint(0, 3)))
        groups = itertools.pairwise([0, *cuts, len(factors)])
        target = [torch.Size(factors[a:b]).numel() for a, b in groups]
        try:
            expected = list(x.view(target).stride())
        except RuntimeError:
            expected = None
        assert view_strides(sizes, strides, target) == expected, (sizes, strides, target)
        possible += expected is not None
    assert possible > 500


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
