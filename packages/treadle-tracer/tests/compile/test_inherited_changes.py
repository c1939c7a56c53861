"""A continuation is compiled at once for what the trace before it knows to change: sizes and numbers that follow from others, and sizes
that depend on data.

The functions reach a second break only after some calls, when it is known that the sizes of `x` change.
"""

from __future__ import annotations

import collections

import pytest
import torch
from compile_runs import compiled, item


def tensor(x, late):
    y = x * 2
    if item(late):
        z = y + 1
        return z * item(z.sum())
    return y


def in_list(x, late):
    x = x * 2
    if item(late):
        parts = [x * 2, (x + 1, x)]
        total = item(parts[0].sum())
        return parts[0] + parts[1][0] * total + parts[1][1]
    return x + 1


def in_dict(x, late):
    x = x * 2
    if item(late):
        parts = collections.OrderedDict(a=x * 2, b={"c": x + 1})
        total = item(parts["a"].sum())
        return parts["a"] + parts["b"]["c"] * total
    return x + 1


def number(x, late):
    x = x * 2
    if item(late):
        n = x.shape[0] // 2
        total = item((x + 1).sum())
        return torch.ones(n) * total, x[:n] + n
    return x + 1


def below_a_call(x, late):
    def inner(y):
        parts = [y * 2, y]
        return parts[0] * item(y.sum()) + parts[1]

    y = x + 1
    return inner(y) * y if item(late) else y


FUNCTIONS = [tensor, in_list, in_dict, number, below_a_call]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_continuation_that_comes_late_is_compiled_once(function):
    fast, said = compiled(function)
    compiled_before = 0
    for turn, size in enumerate((4, 6, 7, 9, 11, 12)):
        x, late = torch.linspace(-1, 2, size), torch.tensor(turn > 2)
        torch.testing.assert_close(fast(x, late), function(x, late), rtol=1e-6, atol=1e-6)
        if turn == 3:
            compiled_before = len(said.graphs)
    numbers = [reason for _, reason in said.recompiles if "size()" in str(reason)]
    assert len(said.graphs) - compiled_before <= 1  # the number that is read from a tensor changes
    assert not any(f"found {size}" in str(reason) for reason in numbers for size in (11, 12))


def test_a_size_that_depends_on_data():
    def function(x, least):
        found = x[x > least] * 2
        return found + item(found.sum())

    fast, said = compiled(function)
    for least in (0.0, -0.5, 0.5, 1.7):
        x = torch.linspace(-1, 2, 23)
        torch.testing.assert_close(fast(x, least), function(x, least), rtol=1e-6, atol=1e-6)
    assert not any("size()" in str(reason) for _, reason in said.recompiles)


def test_sizes_of_none_and_of_one():
    def function(x):
        found = x[x > 0] * 2
        return found + item(found.sum()), found.reshape(-1, 1) * found

    fast, _ = compiled(function)
    for count in (3, 1, 0, 5, 2):
        x = torch.cat([torch.arange(1.0, count + 1), -torch.ones(4)])
        for got, want in zip(fast(x), function(x), strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=0)
            assert got.stride() == want.stride()


def test_nothing_is_dynamic_where_the_user_says_so():
    fast, said = compiled(tensor, dynamic=False)
    for size in (4, 6, 4, 6):
        x, late = torch.linspace(-1, 2, size), torch.tensor(True)
        torch.testing.assert_close(fast(x, late), tensor(x, late))
    sizes = [node.meta["example_value"].shape for gm in said.graphs for node in gm.graph.find_nodes(op="placeholder")]
    assert all(isinstance(n, int) for shape in sizes for n in shape)


def counting(x, turns):
    for n in range(turns):
        x = x * 0.5 + n
        item(x.sum())
    return x


def enumerating(x, turns):
    for n, factor in enumerate([0.5] * turns):
        x = x * factor + n
        item(x.sum())
    return x


def counting_by_hand(x, turns):
    n = 0
    while n < turns:
        x = x * 0.5 + n
        item(x.sum())
        n += 1
    return x


def choosing(x, turns):
    for n in range(turns):
        x = x * 0.5 if n % 2 else x + [3, 1, 4, 1, 5, 9][n]
        item(x.sum())
    return x


@pytest.mark.parametrize("function", [counting, enumerating])
def test_the_number_of_a_turn(function):
    fast, said = compiled(function)
    x = torch.linspace(-1, 2, 5)
    torch.testing.assert_close(fast(x, 6), function(x, 6))
    assert not said.recompiles
    assert len(said.graphs) == 2  # the first turn, and all others


def either(x, late):
    def scaled(y, late):
        if y.sum() < 0 or y.mean() > 1:
            y = y * 2
        return y * y.shape[0]

    y = x + 1
    return scaled(y, late) * y if item(late) else y


def test_both_ways_out_of_a_break_below_a_call():
    """Their continuations in the caller are equal code objects."""
    fast, said = compiled(either)
    for turn, size in enumerate((4, 6, 7, 9, 11, 12, 13, 15)):
        x, late = torch.linspace(-1, 2, size) * (-1) ** turn, torch.tensor(turn > 3)
        torch.testing.assert_close(fast(x, late), either(x, late))
    sizes = [node.meta["example_value"].shape for gm in said.graphs for node in gm.graph.find_nodes(op="placeholder")]
    assert sum(isinstance(n, int) and n > 1 for shape in sizes for n in shape) <= 2  # in the first call


class Counter:
    def __init__(self):
        self.steps = 0

    def advance(self, x, late):
        self.steps += 1
        y = x * self.steps
        if item(late):
            z = y + self.steps
            return z * item(z.sum()) + self.steps
        return y


def test_what_an_argument_holds():
    fast, said = compiled(Counter.advance)
    mine, own = Counter(), Counter()
    x = torch.linspace(-1, 2, 5)
    for turn in range(7):
        late = torch.tensor(turn > 3)
        torch.testing.assert_close(fast(mine, x, late), own.advance(x, late))
    assert mine.steps == own.steps
    late = [str(reason) for _, reason in said.recompiles if any(f"found {turn}" in str(reason) for turn in (6, 7))]
    assert not any("self.steps" in reason for reason in late)


def test_a_turn_that_decides_on_its_number():
    fast, _ = compiled(choosing)
    x = torch.linspace(-1, 2, 5)
    for turns in (6, 3, 6, 1):
        torch.testing.assert_close(fast(x, turns), choosing(x, turns))


def test_a_number_that_a_loop_counts_by_hand():
    """The last turn leaves the loop: that is decided, and no size or number is found to change."""
    fast, said = compiled(counting_by_hand)
    x = torch.linspace(-1, 2, 5)
    torch.testing.assert_close(fast(x, 6), counting_by_hand(x, 6))
    assert not any("dynamic from now on" in str(reason) for _, reason in said.recompiles)


class Updates:
    def __init__(self):
        self.done = 0

    def run(self, rows, batch):
        losses = []
        for _ in range(2):
            picked = rows[torch.randperm(len(rows))[:batch]]
            item(picked.sum())
            self.done += 1
            losses.append(picked.sum() * self.done if self.done % 2 == 0 else picked.mean())
        return losses


def test_entries_that_were_outgrown_leave_room_for_others_in_a_loop():
    fast, said = compiled(Updates.run)
    mine, own = Updates(), Updates()
    rows = torch.linspace(-1, 2, 40).view(20, 2)
    for turn, batch in enumerate((4, 4, 6, 4, 8, 9, 10, 12, 3, 11)):
        results = []
        for run, updates in ((fast, mine), (Updates.run, own)):
            torch.manual_seed(turn)
            updates.done += turn in (2, 5, 7)
            results.append(run(updates, rows, batch))
        torch.testing.assert_close(*results)
    assert not said.skips
