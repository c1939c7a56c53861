"""Operators that are better decomposed before lowering than called through ATen.

The rules are PyTorch's own (`torch._decomp`), those of `_OWN` excepted, for the operators whose records say `decompose`:
elementwise operators, losses, rearrangements and the backward formulas of what `lower` covers. Their parts have lowerings and
fuse. An operator with a lowering here stays whole.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._decomp import decomposition_table

from treadle_codegen.ir.ops import LOW_FLOATS
from treadle_codegen.lower.batch_norm_backward import batch_norm_backward
from treadle_codegen.lower.encoder_layer import masked_softmax, multi_head_attention, transformer_encoder_layer
from treadle_codegen.lower.lowerings import LOWERINGS
from treadle_codegen.lower.nll_loss import nll_loss_backward
from treadle_shapes.torch import families_with
from treadle_shapes.torch import operator as operator_record


def _log_softmax_backward(grad: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype) -> torch.Tensor:
    """PyTorch's rule gives the layout of the gradient that comes in, eager a row-major result."""
    rule = decomposition_table[torch.ops.aten._log_softmax_backward_data.default]
    return rule(grad, output, dim, input_dtype).contiguous()  # type: ignore[no-any-return]


def _cross(a: torch.Tensor, b: torch.Tensor, *, dim: int = -1) -> torch.Tensor:
    """The three components one by one. PyTorch's rule reads both vectors at positions that it computes.

    The kernel refuses vectors of different dtypes, its fake kernel does not.
    """
    if a.dtype != b.dtype:
        raise RuntimeError(f"expected vectors of one dtype, but got {a.dtype} and {b.dtype}")
    (a0, a1, a2), (b0, b1, b2) = a.unbind(dim), b.unbind(dim)
    return torch.stack([a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0], dim)


def _threshold_backward(grad: torch.Tensor, x: torch.Tensor, threshold: Any) -> torch.Tensor:
    """PyTorch's rule rounds the threshold to the dtype of `x`, eager compares as float32."""
    if isinstance(threshold, float) and x.dtype in LOW_FLOATS:
        x = x.float()
    rule = decomposition_table[torch.ops.aten.threshold_backward.default]
    return rule(grad, x, threshold)  # type: ignore[no-any-return]


def _log_sigmoid_backward(grad: torch.Tensor, x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    """PyTorch's rule asks whether the buffer has elements, which may be known at run time only. On CPUs it is as large as `x`."""
    dtype = grad.dtype
    if dtype in LOW_FLOATS:
        grad, x, buffer = grad.float(), x.float(), buffer.float()
    is_negative = x < 0
    z = buffer if x.device.type == "cpu" else torch.exp(-torch.abs(x))
    sign = torch.where(is_negative, 1, -1)
    return (grad * (torch.where(is_negative, 1, 0) - sign * (z / (1 + z)))).to(dtype)


_OWN: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._masked_softmax.default: masked_softmax,
    torch.ops.aten._native_multi_head_attention.default: multi_head_attention,
    torch.ops.aten._transformer_encoder_layer_fwd.default: transformer_encoder_layer,
    torch.ops.aten._log_softmax_backward_data.default: _log_softmax_backward,
    torch.ops.aten.linalg_cross.default: _cross,
    torch.ops.aten.log_sigmoid_backward.default: _log_sigmoid_backward,
    torch.ops.aten.native_batch_norm_backward.default: batch_norm_backward,
    torch.ops.aten.nll_loss_backward.default: nll_loss_backward,
    torch.ops.aten.threshold_backward.default: _threshold_backward,
}


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """`{OpOverload: function}` to apply before `compile_graph`; the caller may change a copy."""
    families = families_with("decompose")  # a record of every operator in the table would take 50 ms
    found = {}
    for op, rule in decomposition_table.items():
        if not isinstance(op, torch._ops.OpOverload) or op._schema.name.removeprefix("aten::") not in families:
            continue
        record = operator_record(op)
        if record is not None and record.decompose and not op._schema.is_mutable and str(op) not in LOWERINGS:
            found[op] = rule
    return found | _OWN
