"""The gradient of the negative log likelihood, as a choice for each element.

PyTorch's own rule scatters -1 into zeros, which would be stored, and kept for the backward pass, as it depends on the targets alone: as
much memory as the scores. A comparison with the class's number fuses with what follows.
"""

from __future__ import annotations

import torch

_MEAN = 1  # at::Reduction::Mean


def nll_loss_backward(
    grad_output: torch.Tensor,
    scores: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
) -> torch.Tensor:
    """`aten.nll_loss_backward`: the gradient of `scores` [classes] or [rows, classes], 0 but at each row's target.

    Targets out of range have raised in the forward pass.
    """
    classes = scores.dim() - 1
    if reduction == _MEAN:
        grad_output = grad_output / total_weight
    if scores.dim() == 1 and target.dim() > 0:
        target = target[0]
    target = target.unsqueeze(classes)
    numbers = torch.arange(scores.shape[classes], device=scores.device)
    if scores.dim() > grad_output.dim() > 0:
        grad_output = grad_output.unsqueeze(classes)
    gradient = -grad_output if weight is None else -grad_output * weight
    return torch.where((numbers == target) & (target != ignore_index), gradient, 0)
