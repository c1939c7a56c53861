"""Training with batch norms in low precision: results, gradients and running statistics are eager's."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

import treadle


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("parameters", ["same", "float32"])
@pytest.mark.parametrize("gradients", [True, False])
def test_steps_agree_with_eager(dtype: torch.dtype, parameters: str, gradients: bool) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(5).to(dtype if parameters == "same" else torch.float32)
    other, x = copy.deepcopy(norm), torch.randn(4, 5, 6, 7).to(dtype)
    found = []
    with warnings.catch_warnings(), torch.set_grad_enabled(gradients):
        warnings.simplefilter("error")
        for module, wrap in ((norm, lambda f: f), (other, treadle.compile)):
            argument = x.clone().requires_grad_(gradients)
            run = wrap(lambda x, module=module: torch.relu(module(x)) * 2)
            for _ in range(2):
                result = run(argument)
            if gradients:
                result.float().square().sum().backward()
            found.append([result, argument.grad, module.weight.grad, module.running_mean, module.running_var])
    for mine, expected in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(mine, expected, rtol=2e-2, atol=2e-2)
