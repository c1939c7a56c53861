"""How often a function that breaks is traced: whether numbers are the cause of a break is tried once for each break."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled, item

from treadle_tracer import compilation


@pytest.fixture
def traces(monkeypatch):
    """(function, whether it broke) of each trace."""
    found = []

    def trace_frame(frame, *args):
        result = plain(frame, *args)
        found.append((frame.code.co_name, result.reason is not None))
        return result

    plain = compilation.trace_frame
    monkeypatch.setattr(compilation, "trace_frame", trace_frame)
    return found


def breaks_anyway(x, n):
    y = x * n
    item(x)
    return y + 1


def breaks_on_a_number(x, n):
    y = x * n
    if n > 0:
        y = y.reshape(-1, int("1" * n))
    return y


def test_a_break_that_has_another_cause_is_not_traced_again_without_numbers(traces):
    fast, _ = compiled(breaks_anyway)
    for dtype in (torch.float32, torch.float64, torch.int64):
        for n in (2, 3):
            x = torch.ones(1, dtype=dtype)
            assert torch.equal(fast(x, n), breaks_anyway(x, n))
    breaking = [name for name, breaks in traces if breaks]
    # float32: 2 is a constant; 3 is a symbol, and the break is seen to come without symbols, too. One trace for each other dtype.
    assert len(breaking) == 1 + 2 + 2


def test_a_break_at_another_place_is_tried_again(traces):
    def function(x, n, first):
        y = x * n
        if first:
            item(x)
        else:
            y = y + 1
            item(x)
        return y + 2

    fast, _ = compiled(function)
    x = torch.ones(1)
    for first in (True, False):
        for n in (2, 3):
            assert torch.equal(fast(x, n, first), function(x, n, first))
    assert sum(breaks for _, breaks in traces) == 1 + 2 + 2


def test_numbers_that_break_the_graph_become_constants_each_time(traces):
    fast, recorder = compiled(breaks_on_a_number)
    for rows in (2, 3):
        for n in (1, 2):
            x = torch.ones(rows, 11)
            assert torch.equal(fast(x, n), breaks_on_a_number(x, n))
    assert not recorder.breaks


def long_turn(x, xs, n):
    for y in xs:
        item(x)
        for _ in range(40):
            x = torch.sin(x) + n
        x = x + y
    return x


def test_where_a_loop_is_left_by_choice_nothing_is_traced_again(traces):
    fast, _ = compiled(long_turn)
    for n in (2, 3):
        xs = list(torch.ones(6, 1))
        assert torch.allclose(fast(xs[0], xs, n), long_turn(xs[0], xs, n))

    assert (
        sum(breaks for _, breaks in traces) == 6
    )  # three traces in each call: at its begin, in the loop, and in the rest of a turn
