"""Layout functions of views agree with PyTorch, and do not answer what would take a decision."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies_shapes import EXAMPLES

torch = pytest.importorskip("torch")

from treadle_shapes import evaluate, symbol  # noqa: E402
from treadle_shapes.layouts import Layout  # noqa: E402
from treadle_shapes.torch import view_layouts  # noqa: E402

DIMS = st.integers(-4, 4)


@st.composite
def tensors(draw):
    """A tensor of up to four dims, dense, permuted or strided."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=0, max_size=4))
    t = torch.empty(sizes)
    if sizes and draw(st.booleans()):
        t = t.permute(*draw(st.permutations(range(len(sizes)))))
    return t[..., ::2] if sizes and draw(st.booleans()) else t


def agree(found, run):
    """`found` is what `run` gives; where it says nothing, or PyTorch refuses, so does the other."""
    try:
        real = run()
    except (RuntimeError, IndexError):
        real = None
    if real is None:
        assert found is None
    elif found is not None:
        assert (list(real.shape), list(real.stride())) == (found.sizes, found.strides)
    return found is not None


def layout(t):
    return Layout(list(t.shape), list(t.stride()))


@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(tensors(), st.data())
def test_formulas_on_numbers(t, data):
    a, b = data.draw(DIMS), data.draw(DIMS)
    agree(view_layouts.unsqueeze(layout(t), a), lambda: t.unsqueeze(a))
    if t.dim():
        agree(view_layouts.transpose(layout(t), a, b), lambda: t.transpose(a, b))
    order = data.draw(st.lists(DIMS, min_size=t.dim(), max_size=t.dim()))
    agree(view_layouts.permute(layout(t), order), lambda: t.permute(order))
    sizes = data.draw(st.lists(st.sampled_from([-1, 1, 2, 3]), max_size=2))
    sizes += [data.draw(st.sampled_from([n, n, -1, 1, 3])) for n in t.shape]
    found = view_layouts.expand(layout(t), sizes)
    if found is not None:
        agree(found, lambda: t.expand(sizes))


@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(tensors(), st.lists(st.sampled_from([-1, 1, 2, 3, 4, 6, 8, 12, 24]), max_size=4))
def test_views_on_numbers(t, sizes):
    found = view_layouts.view(layout(t), sizes)
    if found is not None:
        agree(found, lambda: t.view(sizes))


def test_symbolic_layouts_hold_at_every_size():
    b, s = symbol("b", 1), symbol("s", 1)
    t = Layout([b, s, 8], [s * 8, 8, 1])
    cases = {
        "unsqueeze": (view_layouts.unsqueeze(t, 1), lambda x: x.unsqueeze(1)),
        "transpose": (view_layouts.transpose(t, 1, 2), lambda x: x.transpose(1, 2)),
        "permute": (view_layouts.permute(t, [2, 0, 1]), lambda x: x.permute(2, 0, 1)),
        "merge": (view_layouts.view(t, [-1, 8]), lambda x: x.view(-1, 8)),
        "split": (view_layouts.view(t, [b, s, 2, -1]), lambda x: x.view(x.shape[0], x.shape[1], 2, -1)),
        "expand": (
            view_layouts.expand(Layout([b, 1, 8], [8, 8, 1]), [b, s, 8]),
            lambda x: torch.empty(x.shape[0], 1, 8).expand(x.shape),
        ),
    }
    for name, (found, run) in cases.items():
        assert found is not None, name
        for n, m in ((4, 6), (1, 6), (3, 1)):
            real, values = run(torch.empty(n, m, 8)), {b: n, s: m}
            assert [evaluate(e, values) for e in found.sizes] == list(real.shape), name
            # The stride of a size of 1 addresses nothing.
            pairs = zip(found.strides, real.stride(), real.shape, strict=True)
            assert all(evaluate(e, values) == stride for e, stride, size in pairs if size > 1), name


def test_what_needs_a_decision_is_not_answered():
    b, s = symbol("b", 1), symbol("s", 1)
    assert view_layouts.view(Layout([b, s], [s, 1]), [s, b, 2]) is None
    assert view_layouts.view(Layout([b, s], [s, 1]), [-1, 2]) is None
    assert view_layouts.view(Layout([b, 4], [1, b]), [-1]) is None
    assert view_layouts.expand(Layout([b], [1]), [s]) is None
