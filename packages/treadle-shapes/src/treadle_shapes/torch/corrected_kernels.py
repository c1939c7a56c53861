"""Python kernels of torch that raise on fake tensors where eager does not, or lay their results out otherwise. Needs torch.

Batch norm in training mode over one value per channel: eager divides by n - 1 == 0 in floats and counts `nan` into the running
variance (aten/src/ATen/native/Normalization.cpp, batch_norm_cpu_update_stats_template); torch's decomposition, which fake tensors run,
divides Python numbers and raises ZeroDivisionError (torch/_decomp/decompositions.py, native_batch_norm_helper, torch 2.11 to 2.13).

The fused encoder layer that `nn.TransformerEncoderLayer` calls in eval mode: torch 2.11 and 2.12 have no fake kernel for it, that of 2.13
keeps the strides of its input, where eager's result is always contiguous (aten/src/ATen/native/transformers/transformer.cpp).

Views along sizes of 0 and 1 (torch 2.11 to 2.13): `torch.empty_strided((1, 1, 2, 4), (8, 4, 4, 1)).view(1, 1, 8)` has strides (8, 8, 1) in
eager and (8, 4, 1) as a fake. Both are right about every element, but operators that choose a layout by the strides choose another.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._decomp import decompositions
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensorMode

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


def view_strides(sizes: Sequence[int], strides: Sequence[int], target: Sequence[int]) -> list[int] | None:
    """The strides of `x.view(target)` (aten/src/ATen/TensorUtils.cpp, computeStride); None where a view is not possible.

    Runs of dimensions that lie next to each other in memory are taken from the back; a run's sizes are laid out from its smallest stride.
    """
    if 0 in sizes and list(sizes) == list(target):
        return list(strides)
    if 0 in sizes or not sizes:
        return None
    result = [0] * len(target)
    at = len(target) - 1
    step, run, placed = strides[-1], 1, 1
    for d in reversed(range(len(sizes))):
        run *= sizes[d]
        if d and (sizes[d - 1] == 1 or strides[d - 1] == run * step):
            continue
        while at >= 0 and (placed < run or target[at] == 1):
            result[at] = placed * step
            placed *= target[at]
            at -= 1
        if placed != run:
            return None
        if d:
            step, run, placed = strides[d - 1], 1, 1
    return result if at < 0 else None


_KERNELS = fake_impls.op_implementations_dict
_VIEWS = {
    op: _KERNELS[op] for op in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default) if op in _KERNELS
}


def _view(mode: Any, func: Any, x: torch.Tensor, *shape: Any, **options: Any) -> Any:
    result = _VIEWS[func](mode, func, x, *shape, **options)
    if not _is_static(x) or not _is_static(result) or all(n > 1 for n in (*x.shape, *result.shape)):
        return result
    strides = view_strides(x.shape, x.stride(), result.shape)
    if strides is None or strides == list(result.stride()):
        return result
    return torch.as_strided(result, tuple(result.shape), strides, result.storage_offset())


def _is_static(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and all(type(n) is int for n in (*x.shape, *x.stride(), x.storage_offset()))


def install() -> None:
    """Let torch's decompositions of batch norm and fake tensors use the corrected functions; once is enough."""
    if decompositions.native_batch_norm_helper is _batch_norm:
        return
    decompositions.native_batch_norm_helper = _batch_norm
    _KERNELS[torch.ops.aten._transformer_encoder_layer_fwd.default] = _encoder_layer
    _KERNELS.update(dict.fromkeys(_VIEWS, _view))
    FakeTensorMode.cache_clear()  # all modes share what the kernels gave before
