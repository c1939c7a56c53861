"""Changing sizes through the whole stack: every layout of the input, sizes of 0 and 1 anywhere, marks and names, slices, what it costs."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from sized_layouts import LAYOUTS

import treadle


def block(x):
    """Pointwise, a reduction, a product: one kernel or more of each kind."""
    x = F.gelu(x) + x.mean(1, keepdim=True)
    return (x @ x.transpose(1, 2)).softmax(-1)


def agree(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    if expected.numel():  # which strides an empty tensor has cannot be seen in what it holds
        assert found.stride() == expected.stride()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_has_one_graph_for_all_sizes(layout):
    compiled = treadle.compile(block)
    for sizes in [(4, 3, 5), (6, 7, 2), (2, 9, 8), (5, 2, 17), (33, 4, 3)]:
        x = LAYOUTS[layout](*sizes)
        agree(compiled(x), block(x))
    assert treadle.stats().graphs == 2
    assert treadle.stats().eager_graphs == ()


def test_every_combination_of_small_sizes():
    compiled = treadle.compile(lambda x: F.gelu(x) * 2 + x.sum(1, keepdim=True))
    for sizes in [(4, 3, 5), (6, 7, 2), *itertools.product((0, 1, 3), repeat=3)]:
        x = torch.randn(sizes)
        agree(compiled(x), F.gelu(x) * 2 + x.sum(1, keepdim=True))
    assert treadle.stats().graphs <= 2 + 7  # and one for each combination of empty dimensions


_WEIGHT = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
EMPTY = {
    "pointwise": lambda x: F.gelu(x) * 2,
    "product": lambda x: x @ _WEIGHT,
    "joined": lambda x: torch.cat([x, x + 1], 0),
    "reduced": lambda x: (x.sum(0), x.mean(0), x.sum(1), x.amax(1)),
    "normalised": lambda x: F.layer_norm(x, (5,)).softmax(-1),
    "reshaped": lambda x: x.reshape(-1, 5).t(),
    "selected": lambda x: x[:, ::2] + 1,
}


@pytest.mark.parametrize("case", EMPTY)
def test_nothing_is_one_compile(case):
    function = EMPTY[case]
    compiled = treadle.compile(function)
    for rows, length in [(4, 3), (3, 6), (0, 6), (0, 2), (5, 4), (1, 3), (0, 7)]:
        x = torch.randn(rows, length, 5)
        found, expected = compiled(x), function(x)
        if isinstance(expected, torch.Tensor):
            found, expected = (found,), (expected,)
        for have, want in zip(found, expected, strict=True):
            agree(have, want)
    assert treadle.stats().graphs == 3 + (
        case == "selected"
    )  # every second of two is one, which is compiled on its own
    assert treadle.stats().eager_graphs == ()


def test_no_image_is_one_compile():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.BatchNorm2d(8),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(72, 4),
    ).eval()
    compiled = treadle.compile(model)
    with torch.no_grad():
        for batch in (4, 3, 0, 5, 1, 0):
            x = torch.randn(batch, 3, 8, 8)
            agree(compiled(x), model(x))
    assert treadle.stats().graphs == 3


def test_the_sequence_that_costs_torch_compile_three():
    compiled = treadle.compile(block)
    for n in (4, 5, 6, 1):
        x = torch.randn(n, 3, 8)
        agree(compiled(x), block(x))
    stats = treadle.stats()
    assert stats.graphs == 2
    assert [r.reason for r in stats.recompiles[:1]] == ["x.size()[0]: expected 4, found 5 (dynamic from now on)"]


def test_all_sizes_from_the_first_call_on():
    compiled = treadle.compile(block, dynamic=True)
    for sizes in [(4, 3, 5), (6, 7, 2), (2, 9, 8), (5, 2, 17)]:
        x = torch.randn(sizes)
        agree(compiled(x), block(x))
    assert treadle.stats().graphs == 1


def test_no_size_ever():
    compiled = treadle.compile(block, dynamic=False)
    for n in (4, 5, 6, 4, 5):
        x = torch.randn(n, 3, 8)
        agree(compiled(x), block(x))
    assert treadle.stats().graphs == 3


def test_images_of_all_sizes_in_both_layouts():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(2)
    ).eval()
    for memory_format in (torch.contiguous_format, torch.channels_last):
        treadle.reset()
        compiled = treadle.compile(model)
        with torch.no_grad():
            for n, h, w in [(2, 8, 9), (3, 12, 7), (5, 16, 16), (4, 6, 21), (1, 10, 11)]:
                x = torch.randn(n, 3, h, w).to(memory_format=memory_format)
                agree(compiled(x), model(x))
        assert treadle.stats().graphs <= 3
        assert treadle.stats().eager_graphs == ()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.adaptive_avg_pool2d(x, 1),  # as in ConvNeXt, whose layer norm leaves channels last
        lambda x: F.adaptive_avg_pool2d(x, (2, 3)) + 1,
        lambda x: F.max_pool2d(x, 2) * 2,
        lambda x: F.group_norm(x, 2).flatten(1) @ torch.ones(144, 2),
    ],
)
def test_layouts_of_images_are_asked_without_guards(function):
    compiled = treadle.compile(function)
    for batch in (4, 3, 1, 2):
        x = torch.randn(batch, 6, 6, 4, generator=torch.Generator().manual_seed(batch)).permute(0, 3, 1, 2)
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-4)
    assert treadle.stats().graphs == 2
    assert treadle.stats().eager_graphs == ()


@pytest.mark.parametrize("window", [4, 20])
def test_slices_from_the_end_of_dimensions_shorter_and_longer(window):
    """What a sliding window keeps: all of it while the sequence is shorter."""

    def keep(x):
        y = x * 2
        return y[:, -window:] + 1, y[:, -window:]

    compiled = treadle.compile(keep)
    for n in (8, 9, 17, 30, 3, 21):
        x = torch.randn(2, n, 3)
        for have, want in zip(compiled(x), keep(x), strict=True):
            agree(have, want)
    assert treadle.stats().eager_graphs == ()


def test_marks_ranges_and_names():
    def attend(query, keys):
        return (query @ keys.transpose(1, 2)).softmax(-1) @ keys

    def arguments(batch, q, k):
        query, keys = torch.randn(batch, q, 4), torch.randn(batch, k, 4)
        for tensor, length in ((query, "q"), (keys, "k")):
            treadle.mark_dynamic(tensor, 0, name="batch", max=64)
            treadle.mark_dynamic(tensor, 1, name=length)
        return query, keys

    compiled = treadle.compile(attend)
    for shape in [(2, 3, 5), (4, 8, 3), (7, 2, 9), (3, 6, 6)]:
        given = arguments(*shape)
        agree(compiled(*given), attend(*given))
    assert treadle.stats().graphs == 1
    with pytest.raises(
        treadle.ConstraintError, match=r"'batch' is 2 at query\.size\(\)\[0\] but 3 at keys\.size\(\)\[0\]"
    ):
        compiled(arguments(2, 3, 5)[0], arguments(3, 3, 5)[1])


def test_two_compiled_modules_of_one_class():
    torch.manual_seed(0)
    models = [torch.nn.Linear(4, 3).eval(), torch.nn.Linear(6, 3).eval()]
    compiled = [treadle.compile(model) for model in models]
    with torch.no_grad():
        for n in (2, 5, 1, 7):
            for model, fast in zip(models, compiled, strict=True):
                x = torch.randn(n, model.in_features)
                agree(fast(x), model(x))
    assert treadle.stats().graphs == 4
