"""Checkpointed functions, which eager runs a second time for the gradients: what they change, they change twice."""

from __future__ import annotations

import itertools
import types

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import treadle

LAYERS = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])
STATE = types.SimpleNamespace()


def _run(body, *args):
    return checkpoint(body, *args, use_reentrant=False)


# ---- they change what the function has made before


def takes_from_an_iterator(x):
    layers = iter(LAYERS)
    return _run(lambda h: next(layers)(h).tanh(), x)


def takes_from_a_generator(x):
    scales = (k * 2 for k in range(1, 9))
    return _run(lambda h: (h * next(scales)).tanh(), x) * next(scales)


def takes_from_combined_iterators(x):
    scales = zip(itertools.count(1), map(lambda k: k + 1, [1, 2, 3, 4]), strict=False)
    return _run(lambda h: (h * sum(next(scales))).tanh(), x)


def exhausts_an_iterator(x):
    scales = iter([2, 3, 4])

    def body(h):
        for scale in scales:
            h = (h * scale).tanh()
        return h

    return _run(body, x)


def sends_to_a_generator(x):
    def running():
        total = 1
        while True:
            total += yield total

    totals = running()
    next(totals)
    return _run(lambda h: (h * totals.send(3)).tanh(), x)


def pops(x):
    scales = [1, 2, 3, 4]
    return _run(lambda h: (h * scales.pop()).tanh(), x) * scales[-1]


def counts_in_a_cell(x):
    count = 2

    def body(h):
        nonlocal count
        count += 1
        return (h * count).tanh()

    return _run(body, x) * count


def counts_in_a_dict(x):
    counts = {}

    def body(h):
        counts["calls"] = counts.get("calls", 0) + 1
        return (h * counts["calls"]).tanh()

    return _run(body, x) * counts["calls"]


def counts_in_an_instance(x):
    made = types.SimpleNamespace(calls=1)

    def body(h):
        made.calls += 1
        return (h * made.calls).tanh()

    return _run(body, x) * made.calls


def appends_to_a_new_list_outside(x):
    STATE.losses = []

    def body(h):
        STATE.losses.append(2)
        return (h * len(STATE.losses)).tanh()

    return _run(body, x) * len(STATE.losses)


def writes_to_a_tensor(x):
    y = x * 1

    def body(h):
        y.add_(1)
        return (h * y).tanh()

    return _run(body, x)


def counts_at_a_tensor(x):
    y = x * 1

    def body(h):
        y.calls = getattr(y, "calls", 0) + 1
        return (h * y.calls).tanh()

    return _run(body, x)


def draws_anew(x):
    return checkpoint(lambda h: (h * torch.rand(4)).tanh(), x, use_reentrant=False, preserve_rng_state=False)


# ---- they change what they make themselves


def makes_iterators(x):
    def outputs(h):
        for layer in LAYERS:
            h = layer(h).relu()
            yield h

    def body(h):
        total = 0
        for number, output in enumerate(outputs(h)):
            total = total + output * number
        return total, list(map(lambda layer: layer(h).sum(), LAYERS))

    total, sums = _run(body, x)
    return total + sum(sums)


def returns_a_generator(x):
    def body(h):
        outputs = (layer(h).tanh() for layer in LAYERS)
        return outputs, next(outputs)

    outputs, first = _run(body, x)
    return first + next(outputs)


def reads_what_was_made_before(x):
    scales, made, nested = [2.0], types.SimpleNamespace(scale=3), (1, [2, 3])

    def body(h, layer):
        own, by_name = [], {}
        own.append(scales[0])
        by_name["output"] = layer(h)
        y = h * nested[1][0]
        y.add_(1)
        return (by_name["output"] * own[0] * made.scale).tanh() + y

    return _run(body, x, LAYERS[0])


CHANGING = (
    takes_from_an_iterator,
    takes_from_a_generator,
    takes_from_combined_iterators,
    exhausts_an_iterator,
    sends_to_a_generator,
    pops,
    counts_in_a_cell,
    counts_in_a_dict,
    counts_in_an_instance,
    appends_to_a_new_list_outside,
    writes_to_a_tensor,
    counts_at_a_tensor,
    draws_anew,
)
KEEPING = (makes_iterators, returns_a_generator, reads_what_was_made_before)


def _outcome(function):
    x = torch.linspace(-1, 1, 8).view(2, 4).requires_grad_()
    LAYERS.zero_grad()
    torch.manual_seed(0)
    try:
        result = function(x)
        result.sum().backward()
    except RuntimeError as error:  # of PyTorch's check that the second run computes the same
        return type(error).__name__
    return [result.detach(), x.grad, *[p.grad for p in LAYERS.parameters() if p.grad is not None]]


@pytest.mark.parametrize("program", (*CHANGING, *KEEPING), ids=lambda program: program.__name__)
def test_programs(program):
    compiled = treadle.compile(program)
    for _ in range(2):
        outcome, expected = _outcome(compiled), _outcome(program)
        if isinstance(expected, str):
            assert outcome == expected
        else:
            torch.testing.assert_close(outcome, expected)
    if program in KEEPING:
        assert not treadle.stats().breaks
