"""Programs of gradients compute nothing that the forward pass has saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from treadle_autograd import aot, save_everything, with_budget
from treadle_autograd.partition import Partition, min_cut


def layers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(torch.tanh(torch.tanh(x @ w) @ w) @ w)


def compiled(function: Callable[..., Any], partition: Partition, made: list[fx.GraphModule]) -> Callable[..., Any]:
    def compiler(gm: fx.GraphModule, example_inputs: Any) -> Any:
        made.append(gm)
        return gm

    inputs = [leaf(3, 4), leaf(4, 4)]
    return aot(fx.symbolic_trace(function), inputs, inference=False, forward=compiler, partition=partition)


def leaf(*shape: int) -> torch.Tensor:
    torch.manual_seed(len(shape) + shape[0])
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


def orders(function: Callable[..., Any]) -> list[torch.Tensor]:
    """The gradients of three orders."""
    x, w = leaf(3, 4), leaf(4, 4)
    found = list[torch.Tensor]()
    (value,) = function(x, w)
    for order in range(3):
        gradients = torch.autograd.grad(value.square().sum() + value.sum(), [x, w], create_graph=order < 2)
        found += [g.detach().clone() for g in gradients]
        value = gradients[0] + gradients[1].sum()
    return found


def products(gm: fx.GraphModule) -> int:
    return sum(node.target is torch.ops.aten.mm.default for node in gm.graph.nodes)


@pytest.mark.parametrize("partition", [min_cut, save_everything, with_budget(0.5), with_budget(0.0)])
def test_gradients_of_three_orders(partition: Partition) -> None:
    torch.testing.assert_close(orders(compiled(layers_flat, partition, [])), orders(layers_flat))


def layers_flat(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor]:
    return (layers(x, w),)


def test_products_of_the_forward_pass_are_not_computed_again() -> None:
    made = list[fx.GraphModule]()
    run = compiled(layers_flat, min_cut, made)
    x, w = leaf(3, 4), leaf(4, 4)
    torch.autograd.grad(run(x, w)[0].sum(), [x, w], create_graph=True)
    forward, gradients = made
    assert products(forward) == 3
    assert products(gradients) == 6  # of the first backward pass


def test_an_output_that_has_been_changed_is_not_read() -> None:
    """Eager raises. A program that has saved another value in its place need not."""
    x, w = leaf(3, 4), leaf(4, 4)
    (first,) = torch.autograd.grad(layers(x, w).sum(), x, create_graph=True)
    expected = torch.autograd.grad(first.square().sum(), [x, w])
    for partition in (min_cut, save_everything):
        run = compiled(layers_flat, partition, [])
        (out,) = run(x, w)
        (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        with torch.no_grad():
            out.mul_(2)
        try:
            found = torch.autograd.grad(first.square().sum(), [x, w])
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
        else:
            torch.testing.assert_close(found, expected)


def test_an_output_that_nobody_reads_may_be_changed() -> None:
    def last_is_linear(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.tanh(x @ w) @ w,)

    run = compiled(last_is_linear, min_cut, [])
    found = []
    for function in (last_is_linear, run):
        x, w = leaf(3, 4), leaf(4, 4)
        (out,) = function(x, w)
        (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        with torch.no_grad():
            out.mul_(2)
        found.append(torch.autograd.grad(gradient.square().sum(), [x, w]))
    torch.testing.assert_close(found[0], found[1])
