"""Inputs that a compiled function changes in place while autograd records it, against eager: what they are and lead to afterwards.

Results of other programs keep the history that they had and get one on top; buffers get one. What nobody records (`no_grad`, `data`) leaves
the history as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import treadle

Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]


def leaf(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def facts(x: torch.Tensor) -> tuple[Any, ...]:
    return x._version, x.requires_grad, x.is_leaf, x.grad_fn is None, x._base is None


def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x.mul_(w)
    return (x * 2).sin()


def rows_of_a_buffer(compiler: Compiler) -> Any:
    def f(buffer: torch.Tensor, row: int, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        buffer[row] = x * w
        return buffer.sum()

    run, w, buffer = compiler(f), leaf(4), torch.zeros(3, 4)
    found = [(run(buffer, row, torch.full((4,), 1.0 + row), w), facts(buffer)) for row in range(3)]
    return found, buffer, torch.autograd.grad(buffer.pow(2).sum(), w)


def gradients_with_respect_to_the_new_value(compiler: Compiler) -> Any:
    w, outside = leaf(4), leaf(4, seed=1)
    x = outside * 1
    y = compiler(scaled)(x, w)
    return facts(x), facts(y), torch.autograd.grad(y.sum(), [x, w, outside])


def hooks_on_the_old_and_the_new_value(compiler: Compiler) -> Any:
    w, outside = leaf(4), leaf(4, seed=1)
    x, seen = outside * 1, []
    x.register_hook(lambda gradient: seen.append(("old", gradient.clone())))
    y = compiler(scaled)(x, w)
    x.register_hook(lambda gradient: seen.append(("new", gradient.clone())))
    x.retain_grad()
    (y.sum() + x.sum()).backward()
    return seen, x.grad, w.grad, outside.grad


def a_gradient_retained_before(compiler: Compiler) -> Any:
    w, outside = leaf(4), leaf(4, seed=1)
    x = outside * 1
    x.retain_grad()
    y = compiler(scaled)(x, w)
    (y.sum() + x.sum()).backward()
    return x.grad, w.grad, outside.grad


def the_old_value_is_read(compiler: Compiler) -> Any:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.exp(x) * w
        x.mul_(2)
        return y * x

    w, outside = leaf(4), leaf(4, seed=1)
    x = outside.sin()
    y = compiler(f)(x, w)
    first = torch.autograd.grad(y.sum() + x.sum(), [w, outside], create_graph=True)
    return y, x, first, torch.autograd.grad(sum(g.pow(2).sum() for g in first), [w, outside])


def nobody_records(compiler: Compiler) -> Any:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x.mul_(2)
        w.data.mul_(0.5)
        return x * w

    w, outside = leaf(4), leaf(4, seed=1)
    x = outside * 1
    y = compiler(f)(x, w)
    return y, x, facts(x), facts(w), torch.autograd.grad(y.sum(), [w, outside, x])


def parameters_are_clamped(compiler: Compiler) -> Any:
    torch.manual_seed(0)
    model = nn.Linear(3, 3)

    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            model.weight.clamp_(-0.3, 0.3)
        return model(x).sum()

    run, found = compiler(f), []
    for k in range(3):
        loss = run(leaf(2, 3, seed=k).detach())
        found.append((loss, facts(model.weight), torch.autograd.grad(loss, model.weight)))
    return found


def a_view_is_written(compiler: Compiler) -> Any:
    def f(view: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        view.mul_(w)
        return view.sum()

    run, found = compiler(f), []
    for requires_grad in (False, True):
        w, outside = leaf(4), leaf(2, 4, seed=3)
        base = outside * 1 if requires_grad else torch.ones(2, 4)
        view = base[0]
        y = run(view, w)
        wanted = [w, outside] if requires_grad else [w]
        found.append((facts(base), facts(view), base, torch.autograd.grad(base.pow(2).sum() + y, wanted)))
    return found


def views_of_it_are_returned(compiler: Compiler) -> Any:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        before = x[1:]
        x.mul_(w)
        return before, x[:2], x

    w, outside = leaf(4), leaf(4, seed=1)
    x = outside * 1
    before, after, same = compiler(f)(x, w)
    assert same is x
    loss = before.pow(2).sum() + after.sum() * x.sum()
    return before, after, facts(before), facts(after), torch.autograd.grad(loss, [w, outside])


def leaves_are_refused(compiler: Compiler) -> Any:
    run, found = compiler(scaled), []
    for x in (leaf(4, seed=1), leaf(4, seed=1) * 1, leaf(4, seed=1), torch.ones(4)):
        try:
            found.append(run(x, leaf(4)))
        except RuntimeError as error:
            found.append(str(error))
        found.append((facts(x), x.detach().clone()))
    return found


def an_output_goes_into_a_buffer(compiler: Compiler) -> Any:
    def f(buffer: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x @ w)
        buffer[0] = y.mean(0)
        return y

    w, buffer, seen = leaf(4, 4), torch.zeros(2, 4, dtype=torch.float64), []
    y = compiler(f)(buffer, leaf(3, 4, seed=5).detach(), w)
    y.register_hook(lambda gradient: seen.append(gradient.clone()))
    (y.sum() + buffer.pow(2).sum()).backward()
    return seen, w.grad, facts(buffer), facts(y)


def changed_by_an_activation(compiler: Compiler) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2))
    outside = leaf(3, 4)
    hidden = outside * 2
    y = compiler(model)(hidden)
    return y, hidden, facts(hidden), torch.autograd.grad(y.sum(), [outside, *model.parameters()])


def inside_a_checkpoint(compiler: Compiler) -> Any:
    run, w, outside = compiler(scaled), leaf(4), leaf(4, seed=1)
    y = checkpoint(lambda x: run(x * 1, w), outside, use_reentrant=False)
    return y, torch.autograd.grad(y.sum(), [w, outside])


def two_backward_passes(compiler: Compiler) -> Any:
    w, outside = leaf(4), leaf(4, seed=1)
    y = compiler(scaled)(outside * 1, w)
    y.sum().backward(retain_graph=True)
    (y * y).sum().backward()
    return w.grad, outside.grad


def sizes_change(compiler: Compiler) -> Any:
    def f(buffer: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        buffer[-1] = w * 3
        return buffer.cumsum(0).tanh()

    run, found = compiler(f), []
    for n in (3, 5, 6):
        w, buffer = leaf(4), torch.zeros(n, 4)
        y = run(buffer, w)
        found.append((y, facts(buffer), torch.autograd.grad(y.sum() + buffer.sum(), w)))
    return found


PROGRAMS = [
    rows_of_a_buffer,
    gradients_with_respect_to_the_new_value,
    hooks_on_the_old_and_the_new_value,
    a_gradient_retained_before,
    the_old_value_is_read,
    nobody_records,
    parameters_are_clamped,
    a_view_is_written,
    views_of_it_are_returned,
    leaves_are_refused,
    an_output_goes_into_a_buffer,
    changed_by_an_activation,
    inside_a_checkpoint,
    two_backward_passes,
    sizes_change,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_program(program: Callable[[Compiler], Any]) -> None:
    with treadle.config.patch(leave_unprofitable=False, raise_internal_errors=True):
        found = program(treadle.compile)
    assert_same(found, program(lambda function: function))
    stats = treadle.stats()
    assert stats.graphs and not stats.eager_graphs
    if program is not leaves_are_refused:
        assert not stats.breaks


def test_inputs_that_share_memory_run_in_eager() -> None:
    def f(x: torch.Tensor, view: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.mul_(w)
        return view * 2

    def run(compiler: Compiler) -> Any:
        w, outside = leaf(4), leaf(4, seed=1)
        x = outside * 1
        y = compiler(f)(x, x[1:], w)
        return y, torch.autograd.grad(y.sum(), [w, outside])

    assert_same(run(treadle.compile), run(lambda function: function))


class AssignedBehindAutograd(torch.autograd.Function):
    """Stores a value into the memory of `scratch`, as torchdiffeq does: the result is `scratch`, with the history given here."""

    @staticmethod
    def forward(ctx: Any, scratch: torch.Tensor, value: torch.Tensor, index: Any) -> torch.Tensor:
        ctx.index = index
        scratch.data[index] = value
        return scratch

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return gradient, gradient[ctx.index], None


def test_an_output_that_is_an_input_changed_behind_autograd() -> None:
    def turn(k: torch.Tensor, i: int, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return AssignedBehindAutograd.apply(k, torch.tanh(x + (k[..., :i] * w[:i]).sum(-1)), (..., i))  # type: ignore[no-any-return]

    def run(compiler: Compiler) -> Any:
        x, w, k = leaf(2), leaf(4, seed=1), torch.empty(2, 4)
        k = AssignedBehindAutograd.apply(k, x * x, (..., 0))  # type: ignore[assignment]
        compiled = compiler(turn)
        for i in range(1, 4):
            k = compiled(k, i, x, w.detach())
        return k, torch.autograd.grad(((k * w).sum(-1) ** 2).sum(), [x, w])

    with treadle.config.patch(leave_unprofitable=False):
        assert_same(run(treadle.compile), run(lambda function: function))


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert found.requires_grad == expected.requires_grad
        torch.testing.assert_close(found, expected)
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected
