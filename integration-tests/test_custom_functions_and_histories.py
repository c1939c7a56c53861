"""Custom functions between tensors that have a history or share memory: a gradient reversal returns its input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import treadle


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class Viewed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.t()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.t() * 3


class Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x[0], x[1]

    @staticmethod
    def backward(ctx, first, second):
        return torch.stack([first * 2, second * 5])


def _with_its_source(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x * 2
    return y, Reversed.apply(y)


def _with_a_part(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    z = Reversed.apply(x * 2)
    return z, z[0]


def _before_a_break(x: torch.Tensor) -> tuple[torch.Tensor]:
    z = Reversed.apply(x)
    print(end="")
    return (z.sin(),)


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "the input": lambda x: (Reversed.apply(x),),
    "the input twice": lambda x: (Reversed.apply(Viewed.apply(x)),),
    "a part of it": lambda x: (Reversed.apply(x)[0],),
    "a view": lambda x: (Viewed.apply(x),),
    "several views": lambda x: Rows.apply(x),
    "several views of a result": lambda x: Rows.apply(x * 2),
    "beside its source": _with_its_source,
    "beside its own part": _with_a_part,
    "before a break": _before_a_break,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_their_gradients_are_the_functions(name: str) -> None:
    program = PROGRAMS[name]

    def gradient(run: Callable[[torch.Tensor], Any]) -> torch.Tensor:
        x = torch.arange(6.0, dtype=torch.float64).view(2, 3).requires_grad_()
        return torch.autograd.grad(sum(result.sin().sum() for result in run(x)), x)[0]

    torch.testing.assert_close(gradient(treadle.compile(program)), gradient(program))


class FirstOnly(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x * y

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


@pytest.mark.parametrize("creates_graph", [False, True])
def test_what_gets_no_gradient_leads_to_none(creates_graph: bool) -> None:
    x, parameter = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    compiled = treadle.compile(lambda x, y: FirstOnly.apply(x, y), fullgraph=True)
    result = compiled(x * 2, parameter * 2)
    of_x, none = torch.autograd.grad(result.sum(), [x, parameter], allow_unused=True, create_graph=creates_graph)
    assert of_x.tolist() == [2.0, 2.0, 2.0] and none is None


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("function", [Reversed, Viewed, Doubled])
def test_arguments_that_are_returned_where_gradients_are_off(function: Any, requires_grad: bool) -> None:
    def program(x: torch.Tensor) -> Any:
        with torch.no_grad():
            y = function.apply(x)
        return y.requires_grad, y is x, y, y * 1

    found = []
    for run in (program, treadle.compile(program, fullgraph=True)):
        x = torch.arange(6.0).view(2, 3).requires_grad_(requires_grad) * 1
        needed, is_argument, y, product = run(x)
        facts = [(t.requires_grad, t.is_leaf, t._version, t.tolist()) for t in (x, y, product)]
        found.append((needed, is_argument, facts))
        if function is not Viewed or not requires_grad:
            y.add_(1)
            found.append((x.tolist(), x._version))
    assert found[: len(found) // 2] == found[len(found) // 2 :]


class ProductOfFirst(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, gradient):
        _, y = ctx.saved_tensors
        return gradient * y, None


@pytest.mark.parametrize("changes", [False, True])
def test_second_derivatives_by_an_argument_that_has_no_first_one(changes: bool) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ProductOfFirst.apply(x, Doubled.apply(y) if changes else y)

    found = []
    for run in (program, treadle.compile(program, fullgraph=True)):
        x, leaf = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0, 4.0], requires_grad=True)
        (first,) = torch.autograd.grad(run(x, leaf * 3).sin().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.pow(2).sum(), [x, leaf]))
    torch.testing.assert_close(found[1], found[0])
