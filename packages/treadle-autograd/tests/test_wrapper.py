from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from treadle_autograd.wrapper import why_not_independent

VIEWS = st.tuples(st.integers(0, 5), st.integers(0, 4), st.integers(1, 3))


@given(st.lists(VIEWS, min_size=1, max_size=4), st.sets(st.integers(0, 3)))
def test_overlap_is_never_missed(views, mutated):
    base = torch.zeros(64)
    inputs = [base.as_strided((size,), (stride,), offset) for offset, size, stride in views]
    mutated = frozenset(i for i in mutated if i < len(inputs))
    touched = [{offset + k * stride for k in range(size)} for offset, size, stride in views]
    clash = any(touched[i] & touched[j] and (i in mutated or j in mutated) for i in range(len(views)) for j in range(i))
    if clash:
        assert why_not_independent(inputs, mutated) is not None


def test_neighbours_in_one_storage_are_independent():
    base = torch.zeros(10)
    assert why_not_independent([base[:5], base[5:], 3], frozenset({0, 1})) is None
    assert why_not_independent([base[:6], base[5:]], frozenset()) is None
    assert why_not_independent([base[:6], base[5:]], frozenset({1})) is not None
