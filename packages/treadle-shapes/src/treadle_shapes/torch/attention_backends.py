"""Scaled dot product attention of fake CUDA tensors with the kernel that eager would take for real ones.

`torch.nn.functional.scaled_dot_product_attention` chooses among kernels. With dropout they draw different random numbers, so the
choice must be eager's. For fake tensors PyTorch may choose otherwise: there is no memory and no device behind them. `attention` asks
PyTorch about real tensors of the same layout and calls the operator of that kernel. What PyTorch does before and after each kernel is in
aten/src/ATen/native/transformers/attention.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

import torch
from torch.nn import functional as F

aten = torch.ops.aten
_FUNCTIONALIZE = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)
_EFFICIENT = 2  # of torch.nn.attention.SDPBackend
_FLASH_ALIGNMENT = 8  # the last size of flash attention's arguments is a multiple of it
_MASK_ALIGNMENT = 8  # elements
_LARGEST_CUDNN_SIZE = 65535  # of the batch and of the heads


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
    """`scaled_dot_product_attention` on fake tensors; with dropout, on CUDA, by eager's kernel."""
    call = Attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    kernel = None
    if dropout_p > 0 and all(t.device.type == "cuda" for t in call.tensors):
        choice = eager_choice(call)
        kernel = (
            None if choice == _EFFICIENT and enable_gqa else _KERNELS.get(choice)
        )  # releases group heads differently
    if kernel is None:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    _keep_choice(call)
    return kernel(call)


@dataclass(frozen=True)
class Attention:
    """The arguments of a call."""

    query: Any
    key: Any
    value: Any
    mask: Any
    dropout_p: float
    is_causal: bool
    scale: float | None
    enable_gqa: bool

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [t for t in (self.query, self.key, self.value, self.mask) if t is not None]

    @property
    def needs_gradients(self) -> bool:
        return torch.is_grad_enabled() and any(t.requires_grad for t in (self.query, self.key, self.value))

    @property
    def additive_mask(self) -> torch.Tensor | None:
        """The mask as numbers to add: a mask of bools has 0 where it is true, and -inf elsewhere."""
        if self.mask is None or self.mask.dtype is not torch.bool:
            return self.mask
        zero, infinity = (
            torch.full((), number, dtype=self.query.dtype, device=self.mask.device) for number in (0.0, -inf)
        )
        return torch.where(self.mask, zero, infinity)


def eager_choice(call: Attention) -> int | None:
    """The number of the kernel (`torch.nn.attention.SDPBackend`) that eager takes for real tensors of these layouts; None: unknown."""
    if not torch.cuda.is_available():
        return None
    with torch._C._DisableTorchDispatch(), torch._C._ExcludeDispatchKeyGuard(_FUNCTIONALIZE):
        try:
            query, key, value, *mask = map(_stand_in, call.tensors)
        except torch.OutOfMemoryError:
            return None
        return torch._fused_sdp_choice(  # type: ignore[no-any-return]
            query,
            key,
            value,
            mask[0] if mask else None,
            call.dropout_p,
            call.is_causal,
            scale=call.scale,
            enable_gqa=call.enable_gqa,
        )


def _stand_in(fake: torch.Tensor) -> torch.Tensor:
    real = torch.empty_strided(_numbers(fake.shape), _numbers(fake.stride()), dtype=fake.dtype, device=fake.device)
    return real.requires_grad_(torch.is_grad_enabled() and fake.requires_grad)


def _numbers(sizes: Any) -> list[int]:
    """Symbolic sizes as in the first call."""
    from treadle_shapes.torch.ours import env_of, raw_expr

    found = []
    for size in sizes:
        env = None if isinstance(size, int) else env_of(size)
        hint = size if env is None else env.hint(raw_expr(size))
        found.append(1 if hint is None else int(hint))
    return found


def _keep_choice(call: Attention) -> None:
    """Guard everything about symbolic sizes that PyTorch's choice asks (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp).

    What cuDNN before version 9 asks besides is left out: no release that Treadle supports comes with it.
    """
    query, key, value = call.query, call.key, call.value
    for tensor in call.tensors:
        for dim, size in enumerate(tensor.shape):
            if dim == tensor.dim() - 1 and tensor is not call.mask:
                int(size)  # alignment and limits of the kernels: no other size of a head
            _decide(size == 0, size == 1, size <= _LARGEST_CUDNN_SIZE)
        _decide(tensor.stride(-1) == 1)
    for other in (key, value):
        _decide(*(a == b for a, b in zip(query.shape[:-1], other.shape[:-1], strict=False)))


def _decide(*conditions: Any) -> None:
    for condition in conditions:
        bool(condition)


def _math(call: Attention) -> torch.Tensor:
    attend = aten._scaled_dot_product_attention_math.default
    given = (call.query, call.key, call.value, call.additive_mask, call.dropout_p, call.is_causal, None)
    return attend(*given, scale=call.scale, enable_gqa=call.enable_gqa)[0]  # type: ignore[no-any-return]


def _flash(call: Attention) -> torch.Tensor:
    q, k, v, size = call.query, call.key, call.value, call.query.shape[-1]
    scale = 1 / sqrt(size) if call.scale is None else call.scale  # of the size before padding
    missing = -size % _FLASH_ALIGNMENT
    if missing:
        q, k, v = (F.pad(t, (0, missing)) for t in (q, k, v))
    attend = aten._scaled_dot_product_flash_attention.default
    result = attend(q, k, v, call.dropout_p, call.is_causal, False, scale=scale)[0]
    return result.narrow(-1, 0, size) if missing else result  # type: ignore[no-any-return]


def _efficient(call: Attention) -> torch.Tensor:
    mask = call.additive_mask
    if mask is not None:
        mask = _aligned(mask).expand(*call.query.shape[:3], call.key.shape[2])
    attend = aten._scaled_dot_product_efficient_attention.default
    given = (call.query, call.key, call.value, mask, call.needs_gradients, call.dropout_p, call.is_causal)
    return attend(*given, scale=call.scale)[0]  # type: ignore[no-any-return]


def _aligned(mask: torch.Tensor) -> torch.Tensor:
    """The mask with rows that begin at multiples of eight elements, as the kernel wants them."""
    if mask.stride(-1) == 1 and all(step % _MASK_ALIGNMENT == 0 for step in mask.stride()[:-1]):
        return mask
    size = mask.shape[-1]
    return F.pad(mask, (0, _MASK_ALIGNMENT - size % _MASK_ALIGNMENT)).narrow(-1, 0, size)


def _cudnn(call: Attention) -> torch.Tensor:
    attend = aten._scaled_dot_product_cudnn_attention.default
    given = (call.query, call.key, call.value, call.additive_mask, call.needs_gradients, call.dropout_p)
    return attend(*given, call.is_causal, False, scale=call.scale)[0]  # type: ignore[no-any-return]


# The numbers of `torch.nn.attention.SDPBackend`. Importing that module takes longer than the rest of this one.
_KERNELS: dict[int | None, Callable[..., torch.Tensor]] = {0: _math, 1: _flash, _EFFICIENT: _efficient, 3: _cudnn}


__all__ = ["attention", "eager_choice"]
