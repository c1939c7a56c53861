"""Index arithmetic against torch's own view rules."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle_codegen.lower import indexing
from treadle_shapes.expr import symbol

SIZES = st.lists(st.integers(1, 4), min_size=0, max_size=4).map(tuple)


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes with the same number of elements: regroupings of the same factors."""
    factors = draw(st.lists(st.sampled_from([1, 2, 2, 3]), min_size=1, max_size=5))

    def regroup() -> tuple[int, ...]:
        cuts = sorted(draw(st.lists(st.integers(0, len(factors)), max_size=4)))
        edges = [0, *cuts, len(factors)]
        return tuple(math.prod(factors[a:b]) for a, b in zip(edges, edges[1:], strict=False))

    return regroup(), regroup()


@given(reshapes(), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_reshape_index_is_row_major(shapes: tuple[tuple[int, ...], tuple[int, ...]], random: object) -> None:
    source, target = shapes
    values = torch.arange(math.prod(source)).reshape(source)
    wanted = values.reshape(target)
    for position in range(wanted.numel()):
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(position), target)) if target else ()
        assert int(values[indexing.reshape_index(source, target, index)]) == int(wanted[index])


@given(reshapes(), st.integers(0, 23), st.integers(1, 3))
@settings(max_examples=200, deadline=None)
def test_reshape_strides_agree_with_torch_view(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], which: int, step: int
) -> None:
    source, target = shapes
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(which)).tolist()
    base = torch.empty([source[d] * (step if k == 0 else 1) for k, d in enumerate(order)])
    x = base.permute([order.index(d) for d in range(len(source))])
    if order:
        d = order[0]
        x = x[(slice(None),) * d + (slice(None, None, step),)]
    try:
        wanted = x.view(target)
    except RuntimeError:
        wanted = None
    strides = indexing.reshape_strides(tuple(x.shape), x.stride(), target)
    assert (strides is None) == (wanted is None)
    if strides is not None and wanted is not None:
        assert indexing.same_strides(target, strides, wanted.stride())


@given(SIZES, st.integers(0, 100))
def test_dense_and_contiguous(shape: tuple[int, ...], seed: int) -> None:
    x = torch.empty(shape)
    assert indexing.contiguous(shape) == x.stride()
    order = torch.randperm(len(shape), generator=torch.Generator().manual_seed(seed)).tolist()
    assert indexing.is_dense(tuple(x.permute(order).shape), x.permute(order).stride())


def test_not_dense() -> None:
    assert not indexing.is_dense((2, 3), (6, 2))
    assert not indexing.is_dense((2, 3), (0, 1))
    assert not indexing.is_dense((3, 3), (1, 1))
    assert indexing.is_dense((0, 3), (7, 5))
    assert indexing.contiguous((2, 0, 3)) == torch.empty(2, 0, 3).stride()


def test_symbolic_shapes() -> None:
    n, m = symbol("n", 1), symbol("m", 1)
    assert indexing.contiguous((n, 3, m)) == (3 * m, m, 1)
    assert indexing.is_dense((n, 3, m), (3 * m, m, 1))
    assert indexing.is_dense((n, 3, m), (m, m * n, 1))
    assert not indexing.is_dense((n, 3, m), (4 * m, m, 1))
    assert indexing.reshape_strides((n, 4, m), (4 * m, m, 1), (n * 4, m)) == (m, 1)
    assert indexing.reshape_strides((n * 4, m), (m, 1), (n, 4, m)) == (4 * m, m, 1)
    i, j = symbol("i"), symbol("j")
    assert indexing.reshape_index((n, 12), (n, 3, 4), (i, 2, j)) == (i, 8 + j)


def test_a_symbolic_size_taken_apart_by_floor_division() -> None:
    n, h, w, c = (symbol(name, 1) for name in "nhwc")
    source, target = (n, h, w), (n, h // 2, 2, w // 2, 2)
    assert indexing.reshape_groups(source, target) == [([0], [0]), ([1], [1, 2]), ([2], [3, 4])]
    assert indexing.reshape_groups(target, source) == [([0], [0]), ([1, 2], [1]), ([3, 4], [2])]
    i = [symbol(f"i{k}", 0) for k in range(5)]
    assert indexing.reshape_index(source, target, i) == (i[0], 2 * i[1] + i[2], 2 * i[3] + i[4])
    assert indexing.reshape_groups((n, c, 2, 2, h), (n, 4 * c, h)) == [([0], [0]), ([1, 2, 3], [1]), ([4], [2])]
    # With floors on both sides, both may be smaller than what they were taken from.
    assert indexing.reshape_groups((h // 2, 2, w), (h, 2 * (w // 2))) is None


@pytest.mark.parametrize(("length", "parts", "even"), [(16384, 17, 32), (256, 9, 16), (1000, 30, 40), (96, 50, 96)])
def test_parts_are_equal_where_a_divisor_is_near(length: int, parts: int, even: int) -> None:
    assert indexing.even_parts(length, parts) == even
