"""Jumps that ask whether a size that depends on data is 0: one graph for calls with items, eager's result in calls without."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled

SOME, MORE, NONE = torch.tensor([1.0, -2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0, 7.0]), torch.tensor([-1.0, -2.0])


def scatters(x):
    index = x[x > 0].long()
    count = int(index.max()) + 1 if index.numel() > 0 else 0
    return x.new_zeros(count).index_add(0, index, index.to(x.dtype))


def returns_early(x):
    kept = x[x > 0]
    if len(kept) == 0:
        return x * 2
    return kept.exp() / kept.sum()


def asks_for_truth(x):
    kept = torch.nonzero(x > 0)[:, 0]
    return x[kept].mean() if kept.shape[0] else x.sum()


def skips_classes(x):
    total = x.new_zeros(())
    for sign in (1, -1):
        kept = x[x * sign > 0]
        if kept.numel() == 0:
            continue
        total = total + kept.square().mean()
    return total


ASK_FOR_ITEMS = (scatters, returns_early, asks_for_truth, skips_classes)


@pytest.mark.parametrize("function", ASK_FOR_ITEMS, ids=lambda f: f.__name__)
def test_one_graph_for_calls_with_items(function):
    fast, recorder = compiled(function)
    for x in (SOME, SOME * 2, torch.tensor([2.0, -1.0, 3.0])):
        torch.testing.assert_close(fast(x), function(x))
    assert (recorder.codes(), len(recorder.graphs)) == ([], 1)
    torch.testing.assert_close(fast(NONE), function(NONE))


@pytest.mark.parametrize("function", ASK_FOR_ITEMS, ids=lambda f: f.__name__)
def test_calls_without_items_break_the_graph_at_last(function):
    """Other numbers stay in the graph, whose calls have not failed."""
    fast, recorder = compiled(function)
    for x in (NONE, NONE, NONE, NONE, SOME, MORE, NONE):
        torch.testing.assert_close(fast(x), function(x))
    assert "unbacked-decision" in recorder.codes()


def shrinks(x):
    steps, left = 0, x
    while left.numel() > 0:
        left = left[left > steps]
        steps += 1
    return x * steps


def shrinks_by_calls(x):
    kept = x[x > 0]
    return x.sum() if kept.numel() == 0 else shrinks_by_calls(kept - 1)


def stops_a_loop(x):
    for step in range(5):
        x = x[x > step]
        if not len(x):
            break
    return step


@pytest.mark.parametrize("function", [shrinks, shrinks_by_calls, stops_a_loop], ids=lambda f: f.__name__)
def test_a_question_that_ends_a_loop_is_not_taken_for_granted(function):
    fast, recorder = compiled(function)
    for x in (SOME, MORE, NONE, SOME):
        torch.testing.assert_close(fast(x), function(x))
    assert recorder.codes() != []


def transforms_inside(x):
    inside = (x > 0) & (x < 10)
    out = torch.zeros_like(x)
    out[~inside] = x[~inside]
    if torch.any(inside):
        out[inside] = x[inside].sqrt() - x[inside].min()
    return out


def counts_before(x):
    mask = x > 0
    count = mask.sum().item()
    if count > 0:
        return x[mask].mean() / count
    return x.sum()


def finds_places(x):
    mask = x > 0
    if mask.any().logical_not():
        return x
    return x[mask.nonzero(as_tuple=True)[0]].cumsum(0)


def reads_rows(x):
    mask = x > 0
    rows = x.unsqueeze(1).expand(-1, 3)
    return rows[mask, 1:].amax() if mask.sum() > 0 else rows.sum()


ASK_OF_MASKS = (transforms_inside, counts_before, finds_places, reads_rows)


@pytest.mark.parametrize("function", ASK_OF_MASKS, ids=lambda f: f.__name__)
def test_a_mask_that_the_taken_side_reads_by_has_an_item(function):
    fast, recorder = compiled(function)
    for x in (SOME, MORE, torch.tensor([2.0, -1.0, 3.0, 5.0, -7.0])):
        torch.testing.assert_close(fast(x), function(x))
    assert (recorder.codes(), len(recorder.graphs)) == ([], 2)
    torch.testing.assert_close(fast(NONE), function(NONE))


@pytest.mark.parametrize("function", ASK_OF_MASKS, ids=lambda f: f.__name__)
def test_masks_without_items_break_the_graph_at_last(function):
    fast, recorder = compiled(function)
    for x in (NONE, NONE, NONE, NONE, SOME, MORE, NONE):
        torch.testing.assert_close(fast(x), function(x))
    assert {"branch-on-tensor", "unbacked-decision"} & set(recorder.codes())


def replaces_what_is_not_a_number(x):
    bad = torch.isnan(x)
    out = x.clone()
    if bad.any():
        out[bad] = 0.0
    return out * 2


def halves_until_small(x):
    x = x.clone()
    for _ in range(4):
        large = x > 2
        if not large.any():
            break
        x[large] = x[large] / 2
    return x


@pytest.mark.parametrize("function", [replaces_what_is_not_a_number, halves_until_small], ids=lambda f: f.__name__)
def test_a_mask_that_is_only_written_by_or_ends_a_loop_breaks_the_graph(function):
    fast, recorder = compiled(function)
    for x in (SOME, MORE, torch.tensor([float("nan"), 1.0])):
        torch.testing.assert_close(fast(x), function(x), equal_nan=True)
    assert "branch-on-tensor" in recorder.codes()


def asks_for_more(x):
    kept = x[x > 0]
    return kept.sum() if kept.numel() > 1 else x.sum()


def asks_for_a_number(x):
    return x.sum() if int((x > 0).sum()) > 0 else x * 2


@pytest.mark.parametrize("function", [asks_for_more, asks_for_a_number], ids=lambda f: f.__name__)
def test_other_questions_break_the_graph(function):
    fast, recorder = compiled(function)
    for x in (SOME, NONE):
        torch.testing.assert_close(fast(x), function(x))
    assert set(recorder.codes()) & {"unbacked-decision", "branch-on-tensor"}


def test_a_graph_that_writes_outside_takes_nothing_for_granted():
    def counts(x, total):
        total.add_(1)
        kept = x[x > 0]
        return kept.mean() if kept.numel() > 0 else x.sum()

    fast, recorder = compiled(counts)
    totals = torch.zeros(2), torch.zeros(2)
    for x in (SOME, NONE):
        torch.testing.assert_close(fast(x, totals[0]), counts(x, totals[1]))
        assert torch.equal(*totals)
    assert recorder.codes() != []
