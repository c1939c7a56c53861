"""The gradient of the negative log likelihood against ATen's."""

from __future__ import annotations

import pytest
import torch

import treadle_codegen
from treadle_codegen.lower.nll_loss import nll_loss_backward

aten = torch.ops.aten


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(7,), (5, 7), (1, 3), (0, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gradients(reduction: int, weighted: bool, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    scores = torch.randn(shape, dtype=dtype)
    classes = shape[-1]
    target = torch.randint(classes, shape[:-1])
    if target.dim() and target.numel() > 1:
        target[1] = 2
    weight = torch.rand(classes, dtype=dtype) if weighted else None
    for ignored in (-100, 2):
        result, total = aten.nll_loss_forward(scores, target, weight, reduction, ignored)
        grad = torch.randn_like(result)
        arguments = (grad, scores, target, weight, reduction, ignored, total)
        torch.testing.assert_close(nll_loss_backward(*arguments), aten.nll_loss_backward(*arguments), equal_nan=True)


def test_where_every_row_is_ignored_nothing_gets_a_gradient() -> None:
    scores, target = torch.randn(4, 3), torch.full((4,), -100)
    _, total = aten.nll_loss_forward(scores, target, None, 1, -100)
    arguments = (torch.ones(()), scores, target, None, 1, -100, total)
    assert not nll_loss_backward(*arguments).any() and not aten.nll_loss_backward(*arguments).any()


def test_the_table_has_this_rule() -> None:
    assert treadle_codegen.decompositions()[aten.nll_loss_backward.default] is nll_loss_backward
