"""Views that a graph returns and autograd knows as some of several from one call: a write behind the graph raises, as in eager."""

from __future__ import annotations

import pytest
import torch

import treadle


def unbound(x):
    y = x * 2
    first, _ = y.unbind(0)
    return y, first


def split(x):
    y = x * 2
    return y, y.split(1)[1]


def iterated(x):
    y = x * 2
    return y, list(y)[0]


def of_an_input(x):
    return x, x.chunk(2)[0]


def a_plain_row(x):
    y = x * 2
    return y, y[0]


@pytest.mark.parametrize("program", [unbound, split, iterated, of_an_input, a_plain_row])
@pytest.mark.parametrize("gradients", [True, False], ids=["gradients", "none"])
def test_writes_behind_the_graph(program, gradients):
    def outcome(function):
        x = torch.arange(6.0).reshape(2, 3).requires_grad_(gradients) * 1
        whole, part = function(x)
        try:
            part.mul_(3)
        except RuntimeError as error:
            return str(error).split(" is a view ")[1]
        return whole.tolist()

    with treadle.config.patch(raise_internal_errors=True, leave_unprofitable=False):
        assert outcome(treadle.compile(program)) == outcome(program)


def test_a_function_that_writes_itself():
    def program(x):
        y = x * 2
        for row in y:
            row.mul_(3)
        return y

    for function in (program, treadle.compile(program)):
        with pytest.raises(RuntimeError, match="multiple views"):
            function(torch.ones(2, 3, requires_grad=True))
