"""Arguments that a graph cannot hold as they are, and tensors that a graph cannot make: eager's results and no internal error."""

from __future__ import annotations

import pytest
import torch

import treadle_tracer
from treadle_tracer import TracerOptions


def _called_from(x, **kwargs):
    return kwargs["from"] + x


PROGRAMS = {
    "a tensor type": lambda x: x.type(torch.DoubleTensor),
    "a keyword of Python": lambda x: _called_from(x, **{"from": x}),
    "a keyword of Python to an operator": lambda x: x.clone().random_(**{"from": 0, "to": 1}),
    "a property by its descriptor": lambda x: (torch.Tensor.dtype.__get__(x), torch.Tensor.T.__get__(x), x + 1),
    "sizes to the class": lambda x: torch.Tensor(x.shape).zero_() + x,
    "sizes to new": lambda x: x.new(x.size()).zero_() + x,
    "a part of the sizes": lambda x: torch.Tensor(x.shape[:1]).zero_(),
    "numbers to the class": lambda x: (torch.Tensor(tuple(x.shape)), torch.Tensor(list(x.shape)), x.new([1, 2])),
    "no sizes": lambda x: torch.Tensor(x.sum().shape).zero_() + x,
    "a function of pybind11": lambda x: x + 1 if torch.autograd._profiler_enabled() else x - 1,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_in_eager(name):
    program = PROGRAMS[name]
    options = TracerOptions(raise_internal_errors=True)
    compiled = treadle_tracer.optimize(program, lambda gm, inputs: gm.forward, options)
    for rows in (2, 4, 5):
        x = torch.arange(rows * 3.0).view(rows, 3)
        got, want = compiled(x), program(x)
        for one, other in zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, want)), strict=True):
            if isinstance(other, torch.Tensor):
                torch.testing.assert_close(one, other)
            else:
                assert one == other


def test_a_tensor_that_gets_a_gradient():
    def program(x):
        w = torch.ones(2, requires_grad=True)
        return (w * x).sum(), w

    compiled = treadle_tracer.optimize(program, lambda gm, inputs: gm.forward)
    for _ in range(2):
        loss, w = compiled(torch.full((2,), 3.0))
        assert w.is_leaf and w.requires_grad
        loss.backward()
        assert w.grad.tolist() == [3, 3]
    with torch.no_grad():
        loss, w = compiled(torch.ones(2))
        assert w.requires_grad and not loss.requires_grad
