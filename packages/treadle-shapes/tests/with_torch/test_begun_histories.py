"""A tensor that is computed from a leaf, as far as autograd knows."""

from __future__ import annotations

import torch

from treadle_shapes.torch import begin_history, is_at_beginning


def test_the_tensor_may_be_changed_and_its_gradient_reaches_the_leaf():
    tensor, leaf = torch.tensor([1.0, 2.0]), torch.zeros(2)
    begin_history(tensor, leaf)
    assert tensor.requires_grad and not tensor.is_leaf and tensor._version == 0 and is_at_beginning(tensor)
    tensor.mul_(tensor.detach().clone())
    assert not is_at_beginning(tensor) and not is_at_beginning(leaf)
    tensor.sum().backward()
    assert torch.equal(leaf.grad, torch.tensor([1.0, 2.0]))


def test_no_gradient_of_the_tensor_is_none_of_the_leaf():
    class WithoutGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x + y

        @staticmethod
        def backward(ctx, gradient):
            return gradient, None

    tensor, leaf, other = torch.zeros(2), torch.zeros(2), torch.zeros(2, requires_grad=True)
    begin_history(tensor, leaf)
    WithoutGradient.apply(other, tensor).sum().backward()
    assert other.grad is not None and leaf.grad is None
