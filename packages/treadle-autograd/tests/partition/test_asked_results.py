"""Backward graphs that compute some of the gradients ask operators for these alone."""

from __future__ import annotations

import pytest
import torch
from aten_runner import run_aten
from joint_graphs import joint_of
from torch import fx
from torch.nn import functional

from treadle_autograd import aot
from treadle_autograd.partition import divided, min_cut


def convolved(x, w):
    return (functional.conv2d(x, w, padding=1),)


def sampled(x, grid):
    return (functional.grid_sample(x, grid.tanh(), align_corners=False),)


def normalised(x, w):
    return (functional.layer_norm(x, (6,), w),)


INPUTS = {
    convolved: ((2, 3, 6, 6), (4, 3, 3, 3)),
    sampled: ((2, 3, 6, 6), (2, 5, 5, 2)),
    normalised: ((4, 6), (6,)),
}


def inputs_of(program):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=generator).requires_grad_() for size in INPUTS[program]]


def masked_calls(graph):
    """The calls with a list of bools among their arguments, and that list."""
    found = [(node, a) for node in graph.nodes for a in node.args if isinstance(a, list)]
    return [(node, a) for node, a in found if a and all(type(k) is bool for k in a)]


@pytest.mark.parametrize("wanted", ([0], [1], [0, 1]))
@pytest.mark.parametrize("program", INPUTS)
def test_operators_compute_the_gradients_that_are_wanted(program, wanted):
    halves = divided(joint_of(program, *inputs_of(program)), min_cut)
    ((node, mask),) = masked_calls(halves.backward(wanted).graph)
    assert [k for k, is_asked in enumerate(mask) if is_asked] == wanted
    assert [value is not None for value in node.meta["val"]] == mask


@pytest.mark.parametrize("place", (0, 1))
@pytest.mark.parametrize("program", INPUTS)
def test_gradients_of_one_input(program, place):
    found = []
    for run in (aot(fx.symbolic_trace(program), inputs_of(program), inference=False, forward=run_aten), program):
        inputs = inputs_of(program)
        (result,) = run(*inputs)
        found.append(torch.autograd.grad(result.sin().sum(), inputs[place])[0])
    torch.testing.assert_close(*found)
