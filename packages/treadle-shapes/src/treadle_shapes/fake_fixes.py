"""Python kernels of torch that raise on fake tensors where eager does not. Needs torch.

Batch norm in training mode over one value per channel: eager divides by n - 1 == 0 in floats and counts `nan` into the running
variance (aten/src/ATen/native/Normalization.cpp, batch_norm_cpu_update_stats_template); torch's decomposition, which fake tensors run,
divides Python numbers and raises ZeroDivisionError (torch/_decomp/decompositions.py, native_batch_norm_helper, torch 2.11 to 2.13).

The fused encoder layer that `nn.TransformerEncoderLayer` calls in eval mode: torch 2.11 and 2.12 have no fake kernel for it, that of 2.13
keeps the strides of its input, where eager's result is always contiguous (aten/src/ATen/native/transformers/transformer.cpp).
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch._decomp import decompositions
from torch._subclasses import fake_impls

_helper = decompositions.native_batch_norm_helper


@functools.wraps(_helper)
def _batch_norm(
    x: torch.Tensor,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    training: bool,
    momentum: float,
    eps: float,
    functional: bool,
) -> Any:
    if not training or var is None or not isinstance(x.numel(), int) or x.numel() != x.shape[1] or x.numel() == 0:
        return _helper(x, weight, bias, mean, var, training, momentum, eps, functional)
    output, save_mean, save_rstd, new_mean, _ = _helper(
        x, weight, bias, mean, None, training, momentum, eps, functional
    )
    new_var = var * math.nan
    if not functional:
        var.copy_(new_var)
    return output, save_mean, save_rstd, new_mean, new_var


def _encoder_layer(mode: Any, func: Any, src: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if src.is_nested:
        return NotImplemented
    with mode:
        return src.new_empty(src.shape)


def install() -> None:
    """Let torch's decompositions of batch norm and fake tensors use the corrected functions; once is enough."""
    decompositions.native_batch_norm_helper = _batch_norm
    fake_impls.op_implementations_dict[torch.ops.aten._transformer_encoder_layer_fwd.default] = _encoder_layer
