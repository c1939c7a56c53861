"""What lies behind a tensor in autograd's graph."""

from __future__ import annotations

import torch

from treadle_autograd.histories import functions_behind


def test_functions_behind() -> None:
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    z = (y * y).sum()
    names = [function.name().rpartition(":")[2] for function in functions_behind([z.grad_fn, y.grad_fn])]
    assert sorted(names) == ["AccumulateGrad", "ExpBackward0", "MulBackward0", "SumBackward0"]
    assert functions_behind([x.grad_fn]) == set()
