"""What `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` call in eval mode, by its parts.

Eager has one operator for a whole layer, and one for its attention (aten/src/ATen/native/transformers/transformer.cpp and attention.cpp).
As parts, linear layers have packed weights, what lies between them fuses, and attention without a mask needs no memory for its scores.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

_aten = torch.ops.aten
# Kinds of masks: (length, length), (batch, length), and one of the scores' own shape, as for None.
_FOR_ALL, _KEYS, _EACH = range(3)


def why_not_in_parts(query: torch.Tensor) -> str | None:
    """Why attention to itself stays one operator."""
    if query.device.type != "cpu":
        return "GPUs have kernels of their own for it, which approximate gelu"
    if any(isinstance(size, int) and size == 0 for size in query.shape):
        return "eager gives no weights of an empty batch"
    return "no batch of sequences: eager raises" if query.dim() != 3 else None


def multi_head_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    """`_native_multi_head_attention`; NotImplemented where it stays whole, as where keys or values are other tensors than the queries."""
    if key is not query or value is not query or why_not_in_parts(query) is not None:
        return NotImplemented
    if query.shape[2] != embed_dim or tuple(qkv_weight.shape) != (3 * embed_dim, embed_dim) or embed_dim % num_head:
        return NotImplemented  # eager raises
    gathered, weights = _attended(query, num_head, qkv_weight, qkv_bias, mask, mask_type, need_weights)
    if weights is not None and average_attn_weights:
        weights = weights.sum(1) / num_head
    return F.linear(gathered, proj_weight, proj_bias), weights


def _attended(
    x: torch.Tensor,
    heads: int,
    weight: torch.Tensor,
    bias: torch.Tensor,
    mask: torch.Tensor | None,
    mask_type: int | None,
    needs_weights: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What each place of a sequence gathers from all places, before the last linear layer, and by which weights, if asked for.

    x and the result: (batch, length, features); weights: (batch, heads, length, length).
    """
    batch, length, features = x.shape
    projected = F.linear(x, weight, bias).view(batch, length, 3, heads, features // heads)
    query, key, value = projected.permute(2, 0, 3, 1, 4).unbind()
    weights = None
    if mask is None and not needs_weights:
        gathered = F.scaled_dot_product_attention(query, key, value)
    else:
        scores = torch.matmul(query * (features // heads) ** -0.5, key.transpose(-2, -1))
        if mask is None:
            weights = torch.softmax(scores, 3)
        else:
            weights = _aten._masked_softmax.default(scores, mask.to(torch.bool), 3, mask_type)
        gathered = torch.matmul(weights, value)
    return gathered.transpose(1, 2).reshape(batch, length, features), weights if needs_weights else None


def masked_softmax(
    scores: torch.Tensor, mask: torch.Tensor, dim: int | None = None, mask_type: int | None = None
) -> Any:
    """`_masked_softmax` of scores (batch, heads, length, length), without the elements where `mask` is true; nan where it is true for all.

    mask_type: which of `_FOR_ALL`, `_KEYS`, `_EACH`. NotImplemented for other scores, and where eager raises.
    """
    batch, _, length, _ = shape = scores.shape if scores.dim() == 4 else (0, 0, 0, 0)
    expected = {_FOR_ALL: (length, length), _KEYS: (batch, length), None: shape, _EACH: shape}.get(mask_type)
    if scores.dim() != 4 or dim not in (None, 3, -1) or mask.dtype is not torch.bool or tuple(mask.shape) != expected:
        return NotImplemented
    if mask_type == _KEYS:
        mask = mask[:, None, None, :]
    return torch.softmax(scores.masked_fill(mask, -torch.inf), 3)


def transformer_encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> Any:
    """`_transformer_encoder_layer_fwd`; NotImplemented where it stays whole."""

    def attention(x: torch.Tensor) -> Any:
        weights = qkv_weight, qkv_bias, proj_weight, proj_bias
        return multi_head_attention(x, x, x, embed_dim, num_heads, *weights, mask, False, True, mask_type)

    def feed_forward(x: torch.Tensor) -> torch.Tensor:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), ffn_weight_2, ffn_bias_2)

    def norm_1(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if why_not_in_parts(src) is not None:
        return NotImplemented
    attended = attention(norm_1(src) if norm_first else src)
    if attended is NotImplemented:
        return NotImplemented
    if norm_first:
        x = attended[0] + src
        return x + feed_forward(norm_2(x))
    x = norm_1(attended[0] + src)
    return norm_2(x + feed_forward(x))
