"""Padding of sequences against PyTorch's kernels."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle_tracer.values.jagged_padding import fill_of, padded, without_padding

aten = torch.ops.aten
LENGTHS = st.lists(st.integers(0, 6), min_size=1, max_size=5)


def offsets_of(lengths):
    return torch.nn.functional.pad(torch.tensor(lengths).cumsum(0), (1, 0))


DTYPES = st.sampled_from([torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool])
PADDING = st.sampled_from([0.0, 1.0, -1.0, 0.5, -0.5, 300.0, -1e9, float("inf"), float("-inf")])


@settings(deadline=None, max_examples=100)
@given(LENGTHS, st.integers(1, 8), st.booleans(), DTYPES, PADDING)
def test_rows(lengths, longest, is_found, dtype, padding):
    values = torch.arange(sum(lengths) * 3).reshape(-1, 3).to(dtype)
    wanted = aten._jagged_to_padded_dense_forward(values, [offsets_of(lengths)], [longest], padding)
    given = padded(values, offsets_of(lengths), longest, fill_of(padding, dtype), is_found)
    torch.testing.assert_close(given, wanted)


@settings(deadline=None, max_examples=60)
@given(LENGTHS, st.integers(0, 2), st.booleans(), DTYPES)
def test_sequences(lengths, more, is_found, dtype):
    rows = torch.randn(len(lengths), max(1, *lengths, 0) + more, 3).to(dtype)
    wanted = aten._padded_dense_to_jagged_forward(rows, [offsets_of(lengths)], sum(lengths))
    torch.testing.assert_close(without_padding(rows, offsets_of(lengths), sum(lengths), is_found), wanted)


def test_zeros_behind_the_last_sequence_and_where_rows_are_too_short():
    rows = torch.ones(2, 2, 1)
    found = without_padding(rows, offsets_of([3, 1]), 6)
    assert found.flatten().tolist() == [1, 1, 0, 1, 0, 0]


@settings(deadline=None, max_examples=20)
@given(LENGTHS)
def test_derivatives(lengths):
    offsets, longest = offsets_of(lengths), max(1, *lengths, 0)
    values = torch.randn(sum(lengths), 2, dtype=torch.float64, requires_grad=True)
    rows = torch.randn(len(lengths), longest, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: padded(v, offsets, longest, 0.5), values)
    assert torch.autograd.gradcheck(lambda r: without_padding(r, offsets, sum(lengths)), rows)
    assert torch.autograd.gradgradcheck(lambda r: without_padding(r, offsets, sum(lengths)), rows)
