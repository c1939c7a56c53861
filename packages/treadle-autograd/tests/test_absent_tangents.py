"""Backward passes from some of the outputs: what is computed from the others has no gradient, not a gradient of zeros."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from joint_graphs import joint_of
from torch import fx

from treadle_autograd import aot
from treadle_autograd.partition import divided, min_cut, save_everything


def infinite(x, w):
    error = (x - x.detach()).square().mean().sqrt()  # 0, where the derivative of a square root is infinite
    return x * w, error, error**-0.2


def trunk(x, w):
    hidden = torch.tanh(x @ w)
    return hidden, hidden.exp() @ w, (hidden - hidden).norm()


def parts(x, w):
    first, second, third = (x * w).unbind(0)
    return first * 2, second.sqrt(), torch.cat([first, third.log()])


def stacked(x, w):
    both = torch.stack([x * 2, w * w])
    left, right = both.split(1)
    return left.sum(), right.mean(0), both.transpose(0, 1)


def turned(x, w):
    y = (x.t() * w.t()).contiguous()
    return y.sum(0), y.t() @ w, (y - y).abs().sqrt()


def complex_numbers(x, w):
    return torch.complex(x, w.sin()), torch.complex(x, w.cos()), w.exp()  # gradients of parts have gaps in memory


def unrelated(x, w):
    return x.sin(), w.cos(), (x - x).sqrt() * w


PROGRAMS = [infinite, trunk, parts, stacked, turned, complex_numbers, unrelated]


def gradients(run: Callable[..., Sequence[Any]], chosen: Sequence[int], waits: bool = False) -> list[Any]:
    """waits: whether somebody waits for the gradients, so that the backward graph runs in stages."""
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(3, 3, generator=generator).abs().requires_grad_() for _ in range(2))
    if waits:
        for leaf in (x, w):
            leaf.register_post_accumulate_grad_hook(lambda leaf: None)
    outputs = [torch.view_as_real(output) if output.is_complex() else output for output in run(x, w)]
    torch.autograd.backward([outputs[k].sum() for k in chosen])
    return [x.grad, w.grad]


def check(
    run: Callable[..., Sequence[Any]], program: Callable[..., Sequence[Any]], chosen: Sequence[int], waits: bool = False
) -> None:
    for mine, theirs in zip(gradients(run, chosen, waits), gradients(program, chosen), strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            torch.testing.assert_close(mine, theirs, equal_nan=True)


@pytest.mark.parametrize("waits", [False, True], ids=["whole", "stages"])
@pytest.mark.parametrize("partition", [min_cut, save_everything])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_every_choice_of_outputs(program, partition, waits):
    x, w = (torch.randn(3, 3).abs().requires_grad_() for _ in range(2))
    run = aot(fx.symbolic_trace(program), [x, w], inference=False, forward=lambda gm, _: gm, partition=partition)
    for _ in range(2):
        for count in (1, 2, 3):
            for chosen in itertools.combinations(range(3), count):
                check(run, program, chosen, waits)


def test_the_graph_has_nothing_of_outputs_without_tangents():
    halves = divided(joint_of(trunk, *(torch.randn(3, 3, requires_grad=True) for _ in range(2))), min_cut)
    assert halves.why_not_without((1, 2)) is None
    whole, part = halves.backward((0, 1)), halves.backward((0, 1), (1, 2))
    assert len(part.graph.find_nodes(op="placeholder")) == len(whole.graph.find_nodes(op="placeholder")) - 2
    targets = [node.target for node in part.graph.nodes]
    assert torch.ops.aten.full.default not in targets and torch.ops.aten.add.Tensor not in targets
    assert len(targets) < len(list(whole.graph.nodes))


def test_a_part_of_what_was_divided_gets_zeros():
    halves = divided(joint_of(parts, *(torch.randn(3, 3).abs().requires_grad_() for _ in range(2))), min_cut)
    part = halves.backward((0, 1), (1, 2))
    assert any(node.target is torch.ops.aten.full.default for node in part.graph.nodes)


def test_an_addition_in_another_layout_gives_a_copy_of_its_other_operand():
    halves = divided(joint_of(complex_numbers, *(torch.randn(3, 3, requires_grad=True) for _ in range(2))), min_cut)
    for absent in ((0,), (1,), (2,), (0, 1), (0, 2)):
        assert halves.why_not_without(absent) is None


def test_many_choices_of_outputs():
    def program(x):
        return tuple(torch.tanh(x * k) for k in range(1, 6))

    x = torch.randn(4, requires_grad=True)
    run = aot(fx.symbolic_trace(program), [x], inference=False, forward=lambda gm, _: gm)
    for count in (1, 2, 3, 4, 5):
        for chosen in itertools.combinations(range(5), count):
            mine, theirs = (
                torch.autograd.grad([function(x)[k].sum() for k in chosen], x)[0] for function in (run, program)
            )
            torch.testing.assert_close(mine, theirs)
