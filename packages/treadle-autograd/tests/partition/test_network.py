"""The smallest cut nearest to the source, and cuts that a store keeps."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle_autograd.partition import network
from treadle_autograd.partition.network import INFINITE, SINK, SOURCE, keep_cuts, source_side, why_not_side

SIZE = 6
EDGES = st.dictionaries(
    st.tuples(st.integers(0, SIZE - 1), st.integers(0, SIZE - 1)).filter(
        lambda e: e[0] != e[1] and e[0] != SINK and e[1] != SOURCE
    ),
    st.one_of(st.integers(1, 9), st.just(INFINITE)),
    min_size=1,
).filter(lambda edges: (SOURCE, SINK) not in edges)


@pytest.fixture
def store() -> Iterator[dict[str, bytes]]:
    kept: dict[str, bytes] = {}
    before = network._store
    keep_cuts(kept.get, kept.__setitem__)
    try:
        yield kept
    finally:
        network._store = before


def smallest(edges: network.Edges) -> set[int]:
    """By brute force: of the smallest cuts, the one with the fewest nodes beside the source."""
    found: list[tuple[int, int, set[int]]] = []
    for chosen in itertools.product((False, True), repeat=SIZE - 2):
        side = {SOURCE, *[k + 2 for k, inside in enumerate(chosen) if inside]}
        found.append((sum(c for (a, b), c in edges.items() if a in side and b not in side), len(side), side))
    return min(found, key=lambda item: item[:2])[2]


@settings(max_examples=150, deadline=None)
@given(EDGES)
def test_cuts_are_those_of_brute_force_kept_or_not(edges: network.Edges) -> None:
    kept: dict[str, bytes] = {}
    before, network._store = network._store, None
    try:
        fresh = source_side(SIZE, edges)
        if why_not_side(fresh, edges) is not None:
            return  # source and sink cannot be divided
        assert fresh == smallest(edges)
        keep_cuts(kept.get, kept.__setitem__)
        assert source_side(SIZE, edges) == fresh and len(kept) == 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(network, "_computed", lambda *args: pytest.fail("the cut was computed again"))
            assert source_side(SIZE, edges) == fresh
    finally:
        network._store = before


def test_other_networks_have_other_keys(store: dict[str, bytes]) -> None:
    networks = [
        (4, {(0, 2): 5, (2, 3): 1, (3, 1): 5}),
        (4, {(0, 2): 5, (2, 3): 2, (3, 1): 5}),
        (5, {(0, 2): 5, (2, 3): 1, (3, 1): 5}),
        (4, {(0, 3): 5, (3, 2): 1, (2, 1): 5}),
        (4, {(0, 2): 5, (2, 3): 1, (3, 1): INFINITE}),
        (4, {(0, 2): 5, (2, 3): 1, (3, 1): 5, (0, 3): 1}),
    ]
    for k, (size, edges) in enumerate(networks):
        source_side(size, edges)
        assert len(store) == k + 1


@pytest.mark.parametrize(
    "damaged", [b"", b"\x01", b"\x01\x00\x01\x00\x00", b"\x01\x01\x01\x00", b"\x00\x00\x01\x00", b"\x01\x00\x00\x00"]
)
def test_what_cannot_be_the_cut_is_computed_again(damaged: bytes, store: dict[str, bytes]) -> None:
    edges = {(0, 2): INFINITE, (2, 3): 1, (3, 1): 5}
    assert source_side(4, edges) == {0, 2}
    (key,) = store
    good, store[key] = store[key], damaged
    assert source_side(4, edges) == {0, 2} and store[key] == good


def test_loading_scipy_changes_no_warning_filters() -> None:
    program = """
import sys, warnings
from treadle_autograd.partition.network import source_side
assert "scipy" not in sys.modules
before = warnings.filters, list(warnings.filters)
assert source_side(4, {(0, 2): 5, (2, 3): 1, (3, 1): 5}) == {0, 2}
assert "scipy" in sys.modules
assert before[0] is warnings.filters and before[1] == warnings.filters
"""
    subprocess.run([sys.executable, "-c", program], check=True)
