"""Checkpointed functions, which eager runs a second time for the gradients: what they change, they change twice.

With `use_reentrant=True`, the first run is one without gradients.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import types

import pytest
import torch
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

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


# ---- contexts around both runs


ENTERED: list[str] = []


class Noting(contextlib.AbstractContextManager):
    def __enter__(self):
        ENTERED.append("entered")

    def __exit__(self, *_):
        ENTERED.append("left")


def under_contexts_of_its_own(x):
    y = checkpoint(LAYERS[0], x, use_reentrant=False, context_fn=lambda: (Noting(), Noting()))
    return y * len(ENTERED)


def under_autocast_of_its_own(x):
    contexts = lambda: (torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", torch.bfloat16))  # noqa: E731
    return checkpoint(LAYERS[0], x, use_reentrant=False, context_fn=contexts)


def saves_some(x):
    saved = [torch.ops.aten.mm.default]
    contexts = functools.partial(create_selective_checkpoint_contexts, saved)
    return checkpoint(lambda h: LAYERS[0](h).tanh(), x, use_reentrant=False, context_fn=contexts)


# ---- a first run without gradients


def _reentrant(body, *args):
    return checkpoint(body, *args, use_reentrant=True)


def without_arguments_that_require_gradients(x):
    return _reentrant(LAYERS[0], x.detach())


def with_such_an_argument_in_a_tuple(x):
    return _reentrant(lambda pair: LAYERS[0](pair[0]), (x, 1))


def asks_for_the_grad_mode(x):
    return _reentrant(lambda h: LAYERS[0](h) * (2 if torch.is_grad_enabled() else 3), x)


def asks_a_result(x):
    def body(h):
        y = LAYERS[0](h)
        return y * (2 if y.requires_grad else 3)

    return _reentrant(body, x)


def returns_a_detached_tensor(x):
    y, scale = _reentrant(lambda h: (LAYERS[0](h), h.detach() * 2), x)
    return y * scale * (3 if scale.requires_grad else 4)


def returns_its_argument(x):
    y = _reentrant(lambda h: h, x)
    return y * (3 if y is x else 4)


def returns_a_list(x):
    y, others = _reentrant(lambda h: (LAYERS[0](h), [h * 2]), x)
    return y * (3 if others[0].requires_grad else 4)


def takes_keywords(x):
    try:
        return checkpoint(lambda h, k=1: h * k, x, k=2, use_reentrant=True)
    except ValueError:
        return x * 5


def layers_of_a_model(x):
    for layer in LAYERS:
        x, scale = _reentrant(lambda h, layer=layer: (torch.nn.functional.dropout(layer(h).tanh(), 0.5), None), x)
    return x


LEFT_TO_EAGER = (
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
    under_contexts_of_its_own,
    under_autocast_of_its_own,
    without_arguments_that_require_gradients,
    with_such_an_argument_in_a_tuple,
    asks_for_the_grad_mode,
    asks_a_result,
    returns_a_detached_tensor,
    returns_its_argument,
    returns_a_list,
    takes_keywords,
)
CAPTURED = (makes_iterators, returns_a_generator, reads_what_was_made_before, saves_some, layers_of_a_model)


def _outcome(function):
    x = torch.linspace(-1, 1, 8).view(2, 4).requires_grad_()
    LAYERS.zero_grad()
    ENTERED.clear()
    torch.manual_seed(0)
    try:
        result = function(x)
        result.sum().backward()
    except RuntimeError as error:  # of PyTorch's check that the second run computes the same
        return type(error).__name__
    return [result.detach(), len(ENTERED), x.grad, *[p.grad for p in LAYERS.parameters() if p.grad is not None]]


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize("program", (*LEFT_TO_EAGER, *CAPTURED), ids=lambda program: program.__name__)
def test_programs(program):
    compiled = treadle.compile(program)
    for _ in range(2):
        outcome, expected = _outcome(compiled), _outcome(program)
        if isinstance(expected, str):
            assert outcome == expected
        else:
            torch.testing.assert_close(outcome, expected)
    if program in CAPTURED:
        assert not treadle.stats().breaks
