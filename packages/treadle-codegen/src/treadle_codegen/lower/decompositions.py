"""Operators that are better taken apart before lowering than called through ATen.

The rules are PyTorch's own (`torch._decomp`). Listed are elementwise operators, losses, rearrangements and the backward
formulas of what `lower` covers: their parts have lowerings and fuse. Whatever has a lowering here is left whole.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._decomp import decomposition_table

from treadle_codegen.lower.lowerings import LOWERINGS

_ELEMENTWISE = """
celu glu heaviside xlog1py special_xlog1py special_entr special_log_ndtr ldexp logaddexp2
rrelu_with_noise_functional nan_to_num deg2rad rad2deg lerp float_power
"""
# Not `binary_cross_entropy`: eager raises where an element is no probability, its decomposition does not.
_LOSSES = "mse_loss smooth_l1_loss huber_loss soft_margin_loss binary_cross_entropy_with_logits"
_REARRANGING = "channel_shuffle pixel_shuffle rot90 trace diag_embed block_diag addr renorm linspace logspace im2col"
_BACKWARD = """
gelu_backward silu_backward hardswish_backward hardsigmoid_backward hardtanh_backward leaky_relu_backward elu_backward
mish_backward softplus_backward threshold_backward sigmoid_backward tanh_backward log_sigmoid_backward prelu_backward
hardshrink_backward softshrink_backward glu_backward native_layer_norm_backward native_group_norm_backward
native_batch_norm_backward _softmax_backward_data _log_softmax_backward_data mse_loss_backward smooth_l1_loss_backward
huber_loss_backward binary_cross_entropy_backward nll_loss_backward nll_loss_forward embedding_dense_backward native_dropout_backward
select_backward slice_backward unfold_backward _fused_rms_norm_backward
"""


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """`{OpOverload: function}` to apply before `compile_graph`; a copy may be changed by the caller."""
    names = {f"aten::{name}" for name in " ".join((_ELEMENTWISE, _LOSSES, _REARRANGING, _BACKWARD)).split()}
    return {
        op: rule
        for op, rule in decomposition_table.items()
        if isinstance(op, torch._ops.OpOverload)
        and op._schema.name in names
        and not op._schema.is_mutable
        and str(op) not in LOWERINGS
    }
