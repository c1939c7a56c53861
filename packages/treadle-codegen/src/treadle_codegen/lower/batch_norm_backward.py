"""The gradients of a batch norm, with one view for each of a channel's numbers.

PyTorch's own rule gives the statistics their dimensions one by one. In a network of batch norms these views are a quarter of all nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_LOW_FLOATS = (torch.float16, torch.bfloat16)


def batch_norm_backward(
    grad_output: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    saved_mean: torch.Tensor | None,
    saved_invstd: torch.Tensor | None,
    training: bool,
    eps: float,
    wanted: Sequence[bool],
) -> Any:
    """`aten.native_batch_norm_backward`: gradients of x [batch, channels, ...], of weight and of bias, None where they are not `wanted`.

    Computed in float32 at least, as by aten/src/ATen/native/Normalization.cpp, batch_norm_backward_cpu_template.
    """
    mean, deviation = (saved_mean, saved_invstd) if training else (running_mean, running_var)
    if mean is None or deviation is None or (type(x.numel()) is int and x.numel() == 0):
        return NotImplemented
    dtype = torch.float32 if x.dtype in _LOW_FLOATS else x.dtype
    given = x.dtype, x.dtype if weight is None else weight.dtype
    grad_output, x, mean, deviation = (
        t if t.dtype is dtype else t.to(dtype) for t in (grad_output, x, mean, deviation)
    )
    inverse = deviation if training else torch.rsqrt(deviation + eps)
    channels = [1] * x.dim()
    channels[1] = x.shape[1]
    others = [d for d in range(x.dim()) if d != 1]
    share = x.shape[1] / x.numel()

    centred = x - mean.view(channels)
    total = torch.sum(grad_output, others)
    product = torch.sum(grad_output * centred, others)
    scale = (inverse if weight is None else inverse * weight).view(channels)
    if training:
        projection = centred * (product * share * (inverse * inverse)).view(channels)
        of_x = (grad_output - projection - (total * share).view(channels)) * scale
    else:
        of_x = grad_output * scale
    of_weight = product * inverse if wanted[1] else None
    of_bias = total if wanted[2] else None
    return tuple(
        t if t is None or t.dtype is kind else t.to(kind)
        for t, kind in zip((of_x, of_weight, of_bias), (given[0], given[1], given[1]), strict=True)
    )
