"""Lists and tuples whose items differ from call to call: a break before the call that asks for them, and no version for each."""

from __future__ import annotations

import random

import pytest
import torch
from compile_runs import compiled


def without_nones(xs):
    present = torch.tensor([x is not None for x in xs])
    found = torch.zeros(len(xs), 3)
    found[present] = torch.cat([x for x in xs if x is not None]).sin() * 2
    return found


def of_tuples(pairs):
    firsts, seconds = zip(*pairs, strict=True)
    return torch.cat([x for x in seconds if x is not None]).exp().sum(0) * torch.cat(firsts).sum()


def of_many_lengths(xs):
    return torch.cat(xs).tanh().sum(0) * 2


def appends(xs):
    xs.append(torch.ones(1, 3))
    joined = torch.cat([x for x in xs if x is not None])
    xs.pop(0)
    return joined * 2, len(xs)


def nones(draws):
    return [None if i and draws.random() < 0.4 else torch.randn(1, 3) for i in range(12)]


def pairs(draws):
    return [(torch.randn(1, 3), x) for x in nones(draws)]


def lists(draws):
    return [torch.randn(2, 3) for _ in range(draws.randint(1, 20))]


@pytest.mark.parametrize(
    ("function", "make"), [(without_nones, nones), (of_tuples, pairs), (of_many_lengths, lists), (appends, nones)]
)
def test_the_rest_is_compiled_few_times(function, make):
    draws = random.Random(2)
    fast, recorder = compiled(function)
    for _ in range(30):
        xs = make(draws)
        copies = list(xs), list(xs)
        torch.testing.assert_close(fast(copies[0]), function(copies[1]))
        assert [x is y for x, y in zip(*copies, strict=True)].count(False) in (0, 1)  # what `appends` makes itself
    assert set(recorder.codes()) == {"varying-items"}
    assert len(recorder.graphs) <= 16


def in_a_loop(xs):
    total = torch.zeros(3)
    for x in xs:
        total = total + x.sum(0)
    return total


def of_options(x, names):
    return x * 2 if "wide" in names else x.sum() if names[0] else x + 1


def test_what_no_call_asks_for_and_options_get_versions():
    fast, recorder = compiled(in_a_loop)
    for length in (3, 4, 5, 6, 7, 8):
        xs = [torch.randn(2, 3) for _ in range(length)]
        torch.testing.assert_close(fast(xs), in_a_loop(xs))
    choose, choices = compiled(of_options)
    for names in (("", "wide"), ("a", "b"), ("", ""), ("c", "wide"), ("", "wide")):
        torch.testing.assert_close(choose(SOME, names), of_options(SOME, names))
    assert (recorder.codes(), choices.codes()) == ([], [])


SOME = torch.arange(3.0)


def test_three_lengths_get_versions():
    fast, recorder = compiled(of_many_lengths)
    for length in (3, 4, 5, 3, 4, 5):
        xs = [torch.randn(2, 3) for _ in range(length)]
        torch.testing.assert_close(fast(xs), of_many_lengths(xs))
    assert (recorder.codes(), len(recorder.graphs)) == ([], 3)


def test_a_module_keeps_a_version_for_each_choice_of_its_lists():
    class Scaled(torch.nn.Module):
        def __init__(self, names):
            super().__init__()
            self.names = names

        def forward(self, x):
            return x * sum(map(len, self.names))

    fast, recorder = compiled(lambda module, x: module(x) + 1)
    for names in (["a", "b", "c"], ["dd", "ee", "ff"], ["ggg", "h", "iiii"], ["j", "kk", "l"]):
        module = Scaled(names)
        torch.testing.assert_close(fast(module, SOME), module(SOME) + 1)
    assert recorder.codes() == []


def test_one_graph_is_one_graph():
    fast, _ = compiled(of_many_lengths, fullgraph=True)
    for length in range(1, 8):
        xs = [torch.randn(2, 3) for _ in range(length)]
        torch.testing.assert_close(fast(xs), of_many_lengths(xs))
