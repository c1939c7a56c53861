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
