"""Kernels that read a row once, ask the caches to keep what they read again, and write along several axes at once."""

from __future__ import annotations

import re

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted_kernels import source_and_check


def norm(x: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(1, keepdim=True) + 1e-3)


@given(st.integers(1, 3), st.integers(1, 40), st.integers(1, 9), st.integers(1, 9), st.sampled_from(["f", "l"]))
@settings(max_examples=30, deadline=None)
def test_norms_over_channels(n: int, c: int, height: int, width: int, memory: str) -> None:
    x = torch.randn(n, c, height, width)
    source_and_check(norm, x.to(memory_format=torch.channels_last) if memory == "l" else x)


def test_a_norm_over_channels_reads_once() -> None:
    source = source_and_check(norm, torch.randn(4, 24, 16, 16))
    assert source.count("@triton.jit\ndef k_") == 1 and source.count("tl.load") == 1


def test_a_row_that_is_walked_twice_stays_in_the_caches() -> None:
    source = source_and_check(lambda x: torch.softmax(x, -1), torch.randn(1024, 20000).to(torch.bfloat16))
    policies = re.findall(r'eviction_policy="(\w+)"', source)
    assert policies == ["evict_last", "evict_first"]
    assert "eviction_policy" not in source_and_check(lambda x: torch.softmax(x, -1), torch.randn(64, 1000))


def test_neighbours_along_several_axes_are_stored_together() -> None:
    source = source_and_check(lambda x: F.interpolate(x, scale_factor=2.0), torch.randn(2, 3, 16, 16))
    assert re.search(r"tl.store\(b\d \+ x, ", source)


@given(st.lists(st.integers(1, 5), min_size=2, max_size=4), st.integers(0, 3), st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_repeated_and_permuted_elements(shape: list[int], axis: int, times: int) -> None:
    x = torch.randn(shape)
    d = axis % x.dim()

    def compute(x: torch.Tensor) -> torch.Tensor:
        y = x.repeat_interleave(times, d)
        return torch.cat([y * 2, y.movedim(d, -1).movedim(-1, d)], d) + 1

    source_and_check(compute, x)
