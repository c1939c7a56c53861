"""Loops under tqdm's progress bars, whose class has a finalizer: eager's results and eager's output, compiled in a few graphs."""

from __future__ import annotations

import contextlib
import io

import pytest
import torch

import treadle

tqdm = pytest.importorskip("tqdm").tqdm

NETWORK = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
# Prints at every step, whatever time it takes, and not how much.
ALWAYS = {"mininterval": 0, "miniters": 1, "bar_format": "{desc}{n_fmt}/{total_fmt}{postfix}"}


def bar(*args, **options):
    return tqdm(*args, **ALWAYS, **options)


def loop(x, disable):
    for step in bar(range(4), disable=disable):
        x = x + NETWORK(x) * step
    return x * 2


def two_loops(x, disable):
    def advance(x):
        return x + NETWORK(x)

    for _ in bar(range(3), desc="first", disable=disable):
        x = advance(x)
    for _ in bar(range(2), desc="second", disable=disable):
        x = advance(x)
    return x * 2


def updated(x, disable):
    with bar(total=4, disable=disable) as progress:
        for _ in range(4):
            x = x + NETWORK(x)
            progress.update(1)
    return x * 2


def with_postfix(x, disable):
    progress = bar(range(4), disable=disable)
    for step in progress:
        x = x + NETWORK(x)
        progress.set_postfix(step=step)
    return x * 2


def left_early(x, disable):
    for step in bar(range(9), disable=disable):
        x = x + NETWORK(x)
        if step == 2:
            break
    return x * 2


def caught(x, disable):
    try:
        for step in bar(range(9), disable=disable):
            x = x + NETWORK(x)
            if step == 2:
                raise ValueError("three")
    except ValueError as error:
        x = x + len(str(error))
    return x * 2


def outcome(function, disable):
    x = torch.linspace(-1, 1, 32).reshape(4, 8)
    printed = io.StringIO()
    with torch.no_grad(), contextlib.redirect_stderr(printed):
        result = function(x, disable)
    return result, printed.getvalue().split("\r")


@pytest.mark.parametrize("disable", [False, True], ids=["shown", "disabled"])
@pytest.mark.parametrize(
    "program", [loop, two_loops, updated, with_postfix, left_early, caught], ids=lambda f: f.__name__
)
def test_results_and_output(program, disable):
    compiled = treadle.compile(program)
    for _ in range(3):
        result, text = outcome(compiled, disable)
        expected, expected_text = outcome(program, disable)
        torch.testing.assert_close(result, expected)
        assert text == expected_text


def test_a_disabled_bar_is_one_graph():
    report = treadle.explain(loop)(torch.ones(4, 8), True)
    assert report.graph_count == 1
