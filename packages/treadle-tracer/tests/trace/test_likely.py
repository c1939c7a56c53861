"""Validation of tensors without graph breaks: the exception, what the program has done before it, and what a wrong guess costs.

PYTEST_DONT_REWRITE: the text of a rewritten assert names addresses.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from compile_runs import compare, compiled
from torch.nn import functional as F

GOOD, BAD = torch.tensor([1.0, 2.0]), torch.tensor([1.0, -2.0])
log = []


def raises_if_any(x):
    y = x * 2
    if (y < 0).any():
        raise ValueError(f"negative: {y.min():.1f}")
    return y.sqrt()


def raises_unless_all(x):
    if not torch.all(x > 0):
        raise ValueError("not positive")
    return x.log()


def raises_in_callee(x):
    def positive(t, name):
        if t.min().item() <= 0 or torch.isnan(t).any():
            raise RuntimeError(name)
        return t

    return positive(x, "x") * positive(x + 1, "y")


def asserts(x):
    assert (x > 0).all(), "positive"
    return x.log()


def warns(x):
    if (x < 0).any():
        warnings.warn("negative")
    return x * 2


def writes_first(x):
    log.append(float(x.sum()))
    if (x < 0).any():
        raise ValueError("negative")
    return x * 2


def handled(x):
    try:
        return raises_if_any(x)
    except ValueError:
        return x * 0


CHECKS = (raises_if_any, raises_unless_all, raises_in_callee, asserts, warns, writes_first, handled)


def outcome(function, x):
    log.clear()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            result = function(x).tolist()
        except (ValueError, RuntimeError, AssertionError) as error:
            result = (type(error), str(error), getattr(error, "__notes__", []))
    return result, list(log), [(str(w.message), w.lineno) for w in told]


@pytest.mark.parametrize("check", CHECKS, ids=lambda f: f.__name__)
def test_one_graph_and_eagers_exception(check):
    fast, recorder = compiled(check)
    for x in (GOOD, GOOD + 1, BAD, GOOD):
        assert outcome(fast, x) == outcome(check, x)
    assert (recorder.codes(), len(recorder.graphs)) == ([], 1)


@pytest.mark.parametrize("check", CHECKS, ids=lambda f: f.__name__)
def test_a_guess_that_is_often_wrong_is_given_up(check):
    fast, recorder = compiled(check)
    for x in (BAD, BAD, BAD, BAD, BAD, GOOD, BAD):
        assert outcome(fast, x) == outcome(check, x)
    assert recorder.codes() != []


def test_a_graph_that_writes_outside_takes_nothing_for_granted():
    def counts(x, total):
        total.add_(1)
        if (x < 0).any():
            raise ValueError("negative")
        return x * 2

    for x in (GOOD, BAD):
        recorder = compare(counts, lambda x=x: x.clone(), lambda: torch.zeros(2))
        assert recorder.codes()[:1] in (["branch-on-tensor"], ["data-dependent"])


def test_both_sides_compute():
    def either(x):
        return x * 2 if x.sum() > 0 else x * 3

    for x in (GOOD, BAD):
        assert compare(either, lambda x=x: x.clone()).codes() != []


DRAWS = {
    "gumbel_softmax": lambda x: F.gumbel_softmax(x),
    "dropout2d": lambda x: F.dropout2d(x.expand(3, 4, 2, 2)),
    "fractional_max_pool2d": lambda x: F.fractional_max_pool2d(x.expand(1, 1, 2, 2), 1, output_size=1),
}


@pytest.mark.parametrize("name", DRAWS)
def test_functions_of_pytorch_draw_no_numbers_twice(name):
    draw = DRAWS[name]

    def program(x):
        y = draw(x)
        if (x < 0).any():
            raise ValueError("negative")
        return y

    following = []
    for function in (program, compiled(program)[0]):
        torch.manual_seed(0)
        with pytest.raises(ValueError, match="negative"):
            function(BAD)
        following.append(torch.rand(2).tolist())
    assert following[0] == following[1]


def warns_and_tries_again(x):
    y = x.sqrt()
    if not torch.isnan(y).any():
        return y
    for attempt in range(3):
        x = x + 1.5 * attempt
        warnings.warn(f"attempt {attempt}")
        y = x.sqrt()
        if not torch.isnan(y).any():
            return y
    raise ValueError("negative")


def warns_on_one_of_two_ways(x):
    if x.sum() > 0:
        if x.max() > 100:
            warnings.warn("large")
        return x * 2
    return x - 1


@pytest.mark.parametrize(("function", "graphs"), [(warns_and_tries_again, 1), (warns_on_one_of_two_ways, None)])
def test_a_way_that_warns_is_unlikely(function, graphs):
    fast, recorder = compiled(function)
    values = (GOOD, GOOD + 1, torch.tensor([1.0, -1.0]), torch.tensor([-9.0, 1.0]), GOOD * 200, GOOD)
    for call, x in enumerate(values):
        assert repr(outcome(fast, x)) == repr(outcome(function, x))
        if call == 1 and graphs is not None:
            assert (recorder.codes(), len(recorder.graphs)) == ([], graphs)
