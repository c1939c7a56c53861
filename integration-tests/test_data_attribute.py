"""`x.data`: the same elements, a version counter of its own, no history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import treadle


def written(p, q):
    p.data.mul_(2)
    return p * q


def written_twice_and_returned(p, q):
    d = p.data
    d.add_(1)
    d.mul_(3)
    return p * q, d


def written_by_both_ways(p, q):
    q.add_(1)
    q.data.add_(1)
    q.detach().add_(1)
    return p * q


def of_an_intermediate(p, q):
    y = p * q
    y.data.add_(1)
    y = y + 1
    return y * 2, y.data


def a_part_is_written(p, q):
    p.data[0] = 7
    p.data[1:].zero_()
    return p * q


def copied_into(p, q):
    p.data.copy_(q)
    return p * q


def running_average(p, q):
    p.data = p.data if q is None else p.data
    q.data.mul_(0.5).add_(p.data, alpha=0.25)
    return p * q.data


def a_view_is_returned(p, q):
    return p.data[1:], q.data, p.data.view(-1)


def a_view_is_written_and_returned(p, q):
    d = p.data[1:]
    d.add_(1)
    return d, p * q


def questions(p, q):
    d = p.data
    return d + 1, d.requires_grad, d.is_leaf, d._is_view(), d.grad_fn is None


def under_no_grad(p, q):
    with torch.no_grad():
        p.data.add_(1)
        d = p.data
    return p * q, d


def version_is_asked(p, q):
    p.data.add_(1)
    before = p._version
    q.add_(1)
    return p * q, before, q._version


def saved_before_the_write(p, q):
    y = p * p
    p.data.mul_(2)
    return y * q


def saved_by_a_function_of_the_user(p, q):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return 2 * grad * x

    y = Square.apply(p)
    p.data.mul_(2)
    return y * q


PROGRAMS = [
    written,
    written_twice_and_returned,
    written_by_both_ways,
    of_an_intermediate,
    a_part_is_written,
    copied_into,
    running_average,
    a_view_is_returned,
    a_view_is_written_and_returned,
    questions,
    under_no_grad,
    version_is_asked,
    saved_before_the_write,
    saved_by_a_function_of_the_user,
]


def _look(value: Any, inputs: list[torch.Tensor]) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    storages = [t.untyped_storage().data_ptr() for t in inputs]
    own = value.untyped_storage().data_ptr()
    shared = storages.index(own) if own in storages else None
    flags = (value.requires_grad, value.is_leaf, value._is_view(), value._version)
    return value.tolist(), flags, value.storage_offset(), value.stride(), shared


def _outcome(function: Callable[..., Any], requires_grad: bool) -> Any:
    looks = []
    for start in (1.0, 5.0):
        p = (torch.arange(4.0) + start).requires_grad_(requires_grad)
        q = torch.full((4,), 2.0)
        results = function(p, q)
        results = results if isinstance(results, tuple) else (results,)
        seen = [_look(value, [p, q]) for value in (*results, p, q)]
        if requires_grad and isinstance(results[0], torch.Tensor) and results[0].requires_grad:
            results[0].sum().backward()
            seen.append(p.grad.tolist())
        looks.append(seen)
    return looks


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("backend", ["codegen", "eager"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_like_eager(program, backend, requires_grad):
    treadle.reset()
    expected = _outcome(program, requires_grad)
    assert _outcome(treadle.compile(program, backend=backend), requires_grad) == expected
