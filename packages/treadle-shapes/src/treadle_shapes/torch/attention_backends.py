"""Scaled dot product attention of fake CUDA tensors with the kernel that eager would take for real ones.

`torch.nn.functional.scaled_dot_product_attention` chooses among kernels. With dropout they draw different random numbers, so the
choice must be eager's. For fake tensors PyTorch may choose otherwise: there is no memory and no device behind them. `attention` asks
PyTorch about real tensors of the same layout and calls the operator of that kernel. What PyTorch does before and after each kernel is in
aten/src/ATen/native/transformers/attention.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

aten = torch.ops.aten
_FUNCTIONALIZE = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)
_FLASH_ALIGNMENT = 8  # the last size of flash attention's arguments is a multiple of it


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`scaled_dot_product_attention` on fake tensors; with dropout and without a mask, on CUDA, by eager's kernel."""
    tensors = (query, key, value)
    choice = None
    if attn_mask is None and dropout_p > 0 and all(t.device.type == "cuda" for t in tensors):
        needs_gradients = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        choice = eager_choice(tensors, needs_gradients, dropout_p, is_causal, scale, enable_gqa)
    call = _KERNELS.get(choice)
    if call is None:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    return call(query, key, value, dropout_p, is_causal, scale)


def eager_choice(
    tensors: tuple[torch.Tensor, ...],
    needs_gradients: bool,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> int | None:
    """The number of the kernel (`torch.nn.attention.SDPBackend`) that eager takes for real tensors of these layouts; None: unknown."""
    if not torch.cuda.is_available():
        return None
    with torch._C._DisableTorchDispatch(), torch._C._ExcludeDispatchKeyGuard(_FUNCTIONALIZE):
        try:
            real = [
                torch.empty_strided(_numbers(t.shape), _numbers(t.stride()), dtype=t.dtype, device=t.device)
                for t in tensors
            ]
        except torch.OutOfMemoryError:
            return None
        for stand_in in real:
            stand_in.requires_grad_(needs_gradients)
        return torch._fused_sdp_choice(  # type: ignore[no-any-return]
            *real, None, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )


def _numbers(sizes: Any) -> list[int]:
    """Symbolic sizes as in the first call."""
    from treadle_shapes.torch.ours import env_of, raw_expr

    found = []
    for size in sizes:
        env = None if isinstance(size, int) else env_of(size)
        hint = size if env is None else env.hint(raw_expr(size))
        found.append(1 if hint is None else int(hint))
    return found


def _needs_logsumexp(*tensors: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _flash(q: Any, k: Any, v: Any, dropout_p: float, is_causal: bool, scale: float | None) -> torch.Tensor:
    size = q.shape[-1]
    scale = 1 / math.sqrt(size) if scale is None else scale  # of the size before padding
    missing = -size % _FLASH_ALIGNMENT
    if missing:
        q, k, v = (F.pad(t, (0, missing)) for t in (q, k, v))
    result = aten._scaled_dot_product_flash_attention.default(q, k, v, dropout_p, is_causal, False, scale=scale)[0]
    return result.narrow(-1, 0, size) if missing else result  # type: ignore[no-any-return]


def _efficient(q: Any, k: Any, v: Any, dropout_p: float, is_causal: bool, scale: float | None) -> torch.Tensor:
    keeps = _needs_logsumexp(q, k, v)
    call = aten._scaled_dot_product_efficient_attention.default
    return call(q, k, v, None, keeps, dropout_p, is_causal, scale=scale)[0]  # type: ignore[no-any-return]


def _cudnn(q: Any, k: Any, v: Any, dropout_p: float, is_causal: bool, scale: float | None) -> torch.Tensor:
    keeps = _needs_logsumexp(q, k, v)
    call = aten._scaled_dot_product_cudnn_attention.default
    return call(q, k, v, None, keeps, dropout_p, is_causal, False, scale=scale)[0]  # type: ignore[no-any-return]


# The numbers of `torch.nn.attention.SDPBackend`. Importing that module takes longer than the rest of this one.
_KERNELS: dict[int | None, Callable[..., torch.Tensor]] = {1: _flash, 2: _efficient, 3: _cudnn}


__all__ = ["attention", "eager_choice"]
