"""Ints that floats of sizes are rounded to change with the sizes: one graph serves all."""

from __future__ import annotations

import math

import pytest
import torch
from compile_runs import compiled

ROUNDED = {
    "ceil to a multiple": lambda h, w: math.ceil(h / 32) * 32,
    "ceil of floats": lambda h, w: int(math.ceil(float(h) / 32.0) * 32.0),
    "floor": lambda h, w: math.floor(h * 0.5),
    "int": lambda h, w: int(h * 1.5),
    "int of a scale": lambda h, w: int(float(h) * min(96 / min(h, w), 160 / max(h, w))),
    "int of an inexact factor": lambda h, w: int(h * 0.3) + 1,
    "round": lambda h, w: round(h * 0.25) + 1,
    "round half to even": lambda h, w: round(h / 2),
    "trunc of a negative": lambda h, w: -math.trunc(-h * 0.7),
    "of both sizes": lambda h, w: int(math.sqrt(h * w)),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_one_dynamic_graph_serves_all_sizes(name):
    rounded = ROUNDED[name]

    def function(x):
        n = rounded(x.shape[0], x.shape[1])
        return x.new_full((n, 2), 0.5) * x.sum(), n

    fast, said = compiled(function)
    for height, width in ((33, 20), (40, 70), (70, 33), (120, 121), (181, 64), (182, 50), (183, 90)):
        x = torch.linspace(0, 1, height * width).view(height, width)
        got, want = fast(x), function(x)
        assert got[1] == want[1] and type(got[1]) is int
        torch.testing.assert_close(got[0], want[0], rtol=1e-5, atol=0)
    assert len(said.graphs) <= 3 and not said.breaks and not said.skips


def test_padding_to_a_multiple():
    def batch(images):
        height, width = (
            math.ceil(max(sizes) / 8) * 8 for sizes in zip(*(image.shape for image in images), strict=True)
        )
        padded = images[0].new_zeros((len(images), height, width))
        for place, image in zip(padded, images, strict=True):
            place[: image.shape[0], : image.shape[1]].copy_(image)
        return padded

    fast, said = compiled(batch)
    for sizes in (
        ((5, 9), (7, 12)),
        ((12, 10), (9, 17)),
        ((21, 30), (33, 8)),
        ((16, 9), (3, 24)),
        ((40, 41), (40, 40)),
    ):
        images = [torch.full(size, 1.5) for size in sizes]
        torch.testing.assert_close(fast(images), batch(images), rtol=0, atol=0)
    assert len(said.graphs) <= 3 and not said.breaks


def test_what_does_not_fit_into_64_bits():
    def function(x):
        return x + 1, int(x.shape[0] * 1e30), int(x.shape[0] * 1e15)

    fast, _ = compiled(function)
    for size in (3, 5, 7, 11, 9):
        x = torch.ones(size)
        got, want = fast(x), function(x)
        assert got[1:] == want[1:]
        torch.testing.assert_close(got[0], want[0])
