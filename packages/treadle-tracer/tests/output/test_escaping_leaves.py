"""Tensors that the program makes leaves of autograd: gradients with respect to them where they leave a graph beside results of them."""

from __future__ import annotations

import os

import pytest
import torch
from compile_runs import compiled

W = torch.linspace(-1, 1, 16).reshape(4, 4)
KEPT = {}


def _made(x):
    return x.clone().requires_grad_()


def returned(x):
    y = _made(x)
    return y, (y @ W).tanh()


def kept_outside(x):
    KEPT["leaf"] = y = _made(x)
    return y, (y @ W).tanh().sum()


def before_a_break(x):
    y = _made(x)
    z = (y @ W).tanh()
    os.getpid()
    return y, z * 2


def in_a_block(x):
    with torch.enable_grad():
        y = x.detach()
        y.requires_grad = True
        z = (y * 3).sin()
        os.getpid()
    return y, z


def several(x):
    first, second = _made(x), _made(x * 2)
    return first, (first * second).sin() + second, second


PROGRAMS = [returned, kept_outside, before_a_break, in_a_block, several]


@pytest.mark.parametrize(("program", "grad_mode"), [*((program, True) for program in PROGRAMS), (in_a_block, False)])
def test_gradients_of_leaves_made_inside(program, grad_mode):
    fast, _ = compiled(program)
    for _ in range(3):
        with torch.set_grad_enabled(grad_mode):
            (leaf, result, *rest), (expected_leaf, expected, *others) = (
                fast(torch.ones(3, 4)),
                program(torch.ones(3, 4)),
            )
        gradients = torch.autograd.grad(result.sum(), [leaf, *rest])
        for one, other in zip(gradients, torch.autograd.grad(expected.sum(), [expected_leaf, *others]), strict=True):
            torch.testing.assert_close(one, other)


def forward_mode_by_two_backward_passes(x, v):
    """J v as the gradient of the vector-Jacobian product, as `torch.autograd.functional.jvp` computes it."""
    with torch.enable_grad():
        x = _made(x)
        out = (x @ W).tanh()
        cotangent = torch.zeros_like(out, requires_grad=True)
        (product,) = torch.autograd.grad(out, x, cotangent, create_graph=True)
        return torch.autograd.grad(product, cotangent, v)[0]


def test_gradients_of_gradients_around_a_break():
    fast, _ = compiled(forward_mode_by_two_backward_passes)
    x, v = torch.randn(3, 4), torch.randn(3, 4)
    for _ in range(2):
        torch.testing.assert_close(fast(x, v), forward_mode_by_two_backward_passes(x, v))
