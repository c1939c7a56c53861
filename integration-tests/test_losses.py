"""Losses that are PyTorch's kernels in compiled graphs, with every reduction, left out too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import treadle

X = torch.rand(4, 5)
LOSSES: dict[str, tuple[Any, ...]] = {
    "multi_margin_loss": (X, torch.tensor([0, 4, 2, 2])),
    "multilabel_margin_loss": (X, torch.tensor([[0, 2, -1, 1, 1]] * 4)),
    "binary_cross_entropy": (X, X.flip(0)),
    "mse_loss": (X, X.flip(0)),
    "cross_entropy": (X, torch.tensor([0, 4, 2, 2])),
    "nll_loss": (X, torch.tensor([0, 4, 2, 2])),
    "soft_margin_loss": (X, X.flip(0).round() * 2 - 1),
    "kl_div": (X.log(), X.flip(0)),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("options", [{}, {"reduction": "mean"}, {"reduction": "sum"}, {"reduction": "none"}], ids=str)
@pytest.mark.filterwarnings("ignore:reduction")
def test_losses_and_their_gradients(name: str, options: dict[str, str]) -> None:
    x, target = LOSSES[name]

    def function(x: torch.Tensor) -> torch.Tensor:
        return getattr(F, name)(x * 0.9, target, **options) * 2

    compiled = treadle.compile(function, fullgraph=True)
    given = x.clone().requires_grad_()
    for made, expected in ((compiled(x), function(x)), (compiled(given), function(given))):
        torch.testing.assert_close(made, expected)
        if made.requires_grad:
            gradients = [torch.autograd.grad(result.sum(), given)[0] for result in (made, expected)]
            torch.testing.assert_close(*gradients)
