"""Checks in the backward pass of a custom function that decide on what no gradient depends on."""

from __future__ import annotations

import pytest
import torch

import treadle


class Checked(torch.autograd.Function):
    """Refuses gradients where the first elements of two saved tensors differ."""

    @staticmethod
    def forward(ctx, x, first, second):
        ctx.save_for_backward(x, first, second)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        x, first, second = ctx.saved_tensors
        if not torch.equal(first[0], second[0]):
            raise RuntimeError("the first elements differ")
        return gradient * x.cos(), None, None


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
def test_a_check_of_saved_tensors(backend):
    def function(x, first, second):
        return Checked.apply(x * 2, first, second) + 1

    with treadle.config.patch(leave_unprofitable=False, raise_internal_errors=True):
        fast = treadle.compile(function, backend=backend)
        same, other = torch.ones(3), torch.full((3,), 2.0)
        for size in (4, 5, 7, 1):
            x = torch.randn(size, requires_grad=True)
            (expected,) = torch.autograd.grad(function(x, same, same.clone()).sum(), x)
            (found,) = torch.autograd.grad(fast(x, same, same.clone()).sum(), x)
            torch.testing.assert_close(found, expected)
        for run in (function, fast):
            with pytest.raises(RuntimeError):
                run(x, same, other).sum().backward()
    assert treadle.stats().graphs and not treadle.stats().eager_graphs
