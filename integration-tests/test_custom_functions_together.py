"""Custom functions that are not linear in their gradient, where one backward pass reaches a call and gradients computed from it.

In eager both histories meet in the nodes of the custom functions, which see the sum.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import treadle

Program = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    treadle.reset()
    yield
    treadle.reset()


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return (gradient * x.cos()).clamp(-0.3, 0.3)


class Penalised(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 2 + 0.1 * x


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, gradient * x * x * 3, torch.zeros_like(gradient))


class OfTwo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w, x + w

    @staticmethod
    def backward(ctx, first, second):
        x, w = ctx.saved_tensors
        return (first * w + second).clamp(-0.5, 0.5), (first * x).tanh() + second


def programs() -> Iterator[tuple[str, Program]]:
    for function in (Clipped, Penalised, Linear):
        call, name = function.apply, function.__name__
        yield f"{name}_last", lambda x, w, call=call: call(x @ w).tanh().sum()
        yield f"{name}_twice", lambda x, w, call=call: call(call(x) @ w).tanh().sum()
        yield f"{name}_inside", lambda x, w, call=call: (call((x @ w).exp() * 0.1) * w[0]).pow(2).sum()
        yield f"{name}_of_both", lambda x, w, call=call: call(call(x) * w[0] * call(w[1])).sum()
    yield "two_outputs", lambda x, w: torch.mul(*OfTwo.apply(*OfTwo.apply(x.sin(), w[:4]))).sum()
    yield "one_of_two_outputs", lambda x, w: OfTwo.apply(x.sin(), w[:4])[0].exp().sum()


PROGRAMS = dict(programs())


def leaves() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x, w = torch.randn(4, 6, dtype=torch.float64), torch.randn(6, 6, dtype=torch.float64)
    return x.requires_grad_(), w.requires_grad_()


def penalty(f: Program, x: torch.Tensor, w: torch.Tensor) -> list[Any]:
    y = f(x, w)
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    (y + g.pow(2).sum()).backward()
    return [x.grad, w.grad]


def two_gradients(f: Program, x: torch.Tensor, w: torch.Tensor) -> list[Any]:
    y = f(x, w)
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    (h,) = torch.autograd.grad(y * 2, w, create_graph=True)
    (y + g.pow(2).sum() + h.sin().mean()).backward()
    return [x.grad, w.grad]


def without_the_call(f: Program, x: torch.Tensor, w: torch.Tensor) -> list[Any]:
    y = f(x, w)
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    (h,) = torch.autograd.grad(y * 2, w, create_graph=True)
    return list(torch.autograd.grad(g.pow(2).sum() + h.sin().mean(), (x, w), allow_unused=True))


def again(f: Program, x: torch.Tensor, w: torch.Tensor) -> list[Any]:
    y = f(x, w)
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    loss = y + g.pow(2).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()
    return [x.grad, w.grad]


def third(f: Program, x: torch.Tensor, w: torch.Tensor) -> list[Any]:
    y = f(x, w)
    g, h = torch.autograd.grad(y, (x, w), create_graph=True)
    (k,) = torch.autograd.grad(y + g.pow(2).sum(), x, create_graph=True)
    (k.pow(2).sum() + g.sum() + y + h.sum()).backward()
    return [x.grad, w.grad]


def named_only(f: Program, x: torch.Tensor, w: torch.Tensor) -> list[Any]:
    y = f(x, w)
    g, h = torch.autograd.grad(y, (x, w), create_graph=True)
    return list(torch.autograd.grad(g.sum() * y + h.sum(), (w,)))


def of_tangents(f: Program, x: torch.Tensor, w: torch.Tensor) -> list[Any]:
    v = torch.ones((), dtype=torch.float64, requires_grad=True)
    y = f(x, w)
    (g,) = torch.autograd.grad(y, x, v, create_graph=True)
    (g.sum() * 3 + y * 0.1).backward()
    return [x.grad, w.grad, v.grad]


def with_hooks(f: Program, x: torch.Tensor, w: torch.Tensor) -> list[Any]:
    seen: list[torch.Tensor] = []
    x.register_hook(lambda gradient: seen.append(gradient.clone()))
    w.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.clone()))
    z = x * 1
    z.register_hook(lambda gradient: seen.append(gradient.clone()))
    y = f(z, w)
    (g,) = torch.autograd.grad(y, z, create_graph=True)
    (y + g.pow(2).sum()).backward()
    return seen


MODES = [penalty, two_gradients, without_the_call, again, third, named_only, of_tangents, with_hooks]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.__name__)
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_eagers(name: str, mode: Callable[..., list[Any]]) -> None:
    expected = mode(PROGRAMS[name], *leaves())
    found = mode(treadle.compile(PROGRAMS[name], fullgraph=True), *leaves())
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


def test_an_input_that_is_changed_before_the_second_derivative_raises_as_in_eager() -> None:
    def run(f: Program) -> None:
        x, w = leaves()
        z = x * 1
        y = f(z, w)
        (g,) = torch.autograd.grad(y, z, create_graph=True)
        with torch.no_grad():
            z.add_(1)
        g.pow(2).sum().backward()

    for f in (PROGRAMS["Clipped_last"], treadle.compile(PROGRAMS["Clipped_last"])):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            run(f)


def test_a_call_that_has_let_its_tensors_go_raises_as_in_eager() -> None:
    for f in (PROGRAMS["Clipped_last"], treadle.compile(PROGRAMS["Clipped_last"])):
        x, w = leaves()
        y = f(x, w)
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        y.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            (y + g.pow(2).sum()).backward()


def test_a_loss_that_is_kept_keeps_no_batch() -> None:
    for f in (PROGRAMS["Clipped_inside"], treadle.compile(PROGRAMS["Clipped_inside"])):
        batch, w = leaves()
        batch = batch.detach()
        y = f(batch, w)
        (g,) = torch.autograd.grad(y, w, create_graph=True)
        loss = y + g.pow(2).sum()
        loss.backward()
        reference = weakref.ref(batch)
        del batch, y, g
        gc.collect()
        assert reference() is None
        del loss


def test_losses_that_are_kept_keep_no_more_than_eagers() -> None:
    def kept(f: Program) -> int:
        losses, before = [], tensors()
        for _ in range(5):
            x, w = leaves()
            y = f(x, w)
            (g,) = torch.autograd.grad(y, x, create_graph=True)
            losses.append(y + g.pow(2).sum())
            losses[-1].backward()
        del x, w, y, g
        return tensors() - before

    compiled = treadle.compile(PROGRAMS["Clipped_inside"])
    kept(compiled)
    assert kept(compiled) <= kept(PROGRAMS["Clipped_inside"])


def tensors() -> int:
    gc.collect()
    return sum(type(found) is torch.Tensor for found in gc.get_objects())


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x.sin() * w

    @staticmethod
    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        return gradient * x.cos() * w, gradient * x.sin()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 1), (1, 2, 0)])
def test_a_backward_pass_for_each_result_of_linear_functions(order):
    """Eager's histories of the results have only the inputs in common."""

    def function(a, b, w):
        return Product.apply(a * w, w).sum(), (b.tanh() * w).cos().sum(), Product.apply(b.exp(), a).sum()

    def passes(run):
        leaves = [torch.linspace(-1, k, 4).requires_grad_() for k in (1, 2, 3)]
        results, found = run(*leaves), []
        for k in order:
            try:
                results[k].backward()
            except RuntimeError as error:
                return found, str(error)
            found += [torch.zeros(4) if leaf.grad is None else leaf.grad.clone() for leaf in leaves]
        return found, None

    with treadle.config.patch(leave_unprofitable=False):
        (found, error), (expected, theirs) = passes(treadle.compile(function)), passes(function)
    torch.testing.assert_close(found, expected)
    assert error == theirs
