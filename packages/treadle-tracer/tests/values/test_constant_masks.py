"""Ranges of keys that a mask leaves to blocks of queries: as counted, known where the mask depends on sizes alone."""

import types
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle_tracer.trace.driver import trace_function
from treadle_tracer.values import constant_masks
from treadle_tracer.values.constant_masks import known_ranges, ranges_of


def known(function, bounds, multiple, *args):
    """`known_ranges` of the mask that a function gives."""
    result = trace_function(function, args)
    return known_ranges(types.SimpleNamespace(graph=result.graph), result.value.node(None), bounds, multiple)


def vmapped(mask, queries, keys):
    over_keys = torch.vmap(mask, (None, 0))
    return torch.vmap(over_keys, (0, None))(torch.arange(queries), torch.arange(keys))[None, None]


@given(
    st.lists(st.lists(st.booleans(), min_size=12, max_size=12), min_size=9, max_size=9),
    st.sampled_from([1, 4]),
    st.sampled_from([[0, 9], [0, 4, 9], [0, 1, 2, 9]]),
)
@settings(max_examples=100, deadline=None)
def test_ranges_hold_all_that_is_seen(rows, multiple, bounds):
    seen = torch.tensor(rows)[None, None]
    starts, lengths = ranges_of(seen, bounds, multiple)
    for (a, b), start, length in zip(pairwise(bounds), starts.tolist(), lengths.tolist(), strict=True):
        assert start >= 0 and length >= 2 and start + length <= 12
        places = seen[0, 0, a:b].any(0).nonzero().flatten().tolist()
        if places:
            assert start <= places[0] and places[-1] < start + length
            assert start > places[0] - multiple or length == 2
            assert start + length == max(places[-1] + 1, 2)


def test_masks_of_sizes_are_known():
    assert known(lambda: vmapped(lambda q, k: (q >= k) & (q - k < 5), 16, 16), [0, 8, 16], 1) == [(0, 8), (4, 12)]
    assert known(lambda: vmapped(lambda q, k: (q >= k) & (q - k < 3), 16, 16), [0, 8, 16], 1) == [(0, 8), (6, 10)]
    whole = lambda: (torch.arange(16)[:, None] >= torch.arange(16))[None, None]  # noqa: E731
    assert known(whole, [0, 8, 16], 4) == [(0, 8), (0, 16)]


DOCUMENTS = torch.arange(16) // 4


def test_masks_of_tensors_are_not():
    assert known(lambda: vmapped(lambda q, k: q >= k + DOCUMENTS.sum(), 16, 16), [0, 8, 16], 1) is None


def test_masks_of_random_numbers_are_not():
    assert known(lambda: (torch.rand(16, 16) > 0.5)[None, None], [0, 16], 1) is None
    assert known(lambda: torch.empty(16, 16, dtype=torch.bool)[None, None], [0, 16], 1) is None


def test_masks_of_inputs_are_not():
    assert known(lambda x: (x > 0)[None, None], [0, 8], 1, torch.randn(8, 8)) is None


@pytest.mark.parametrize("is_through_view", [True, False])
def test_masks_that_the_program_has_written_to_are_not(is_through_view):
    def run():
        mask = torch.zeros(16, 16, dtype=torch.bool)
        if is_through_view:
            mask[:, 8:].fill_(True)
        else:
            mask[:, 8:] = True
        return mask[None, None]

    assert known(run, [0, 16], 1) is None


def test_layers_share_what_is_found(monkeypatch):
    monkeypatch.setattr(constant_masks, "_kept", type(constant_masks._kept)())

    def causal():
        return vmapped(lambda q, k: q >= k, 32, 32)

    first = known(causal, [0, 32], 1)
    assert first is not None
    monkeypatch.setattr(constant_masks, "make_calls", lambda *args: pytest.fail("computed again"))
    assert known(causal, [0, 32], 1) == first
    monkeypatch.undo()
    assert known(causal, [0, 16, 32], 1) == [(0, 16), (0, 32)]
