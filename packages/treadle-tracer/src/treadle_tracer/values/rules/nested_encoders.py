"""`nn.TransformerEncoder` in eval mode with padded sequences, which eager runs on nested tensors.

Under `torch.compiler.is_compiling()` it computes what is padded, too, and returns that; eager returns zeros there. The condition, that
every sequence comes before its padding, is one on data. The function traced in its place puts the zeros where eager does.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from treadle_tracer.values.rules.rule import Args, Effect, Kwargs, Rule
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_theirs = nn.TransformerEncoder.forward
_plain = types.FunctionType(_theirs.__code__, _theirs.__globals__, "forward", _theirs.__defaults__, _theirs.__closure__)
"""torch's function, under a name that no rule knows."""


def encoder(
    self: nn.TransformerEncoder,
    src: torch.Tensor,
    mask: torch.Tensor | None = None,
    src_key_padding_mask: torch.Tensor | None = None,
    is_causal: bool | None = None,
) -> torch.Tensor:
    """`nn.TransformerEncoder.forward`"""
    if mask is not None or is_causal or not may_be_nested(self, src, src_key_padding_mask):
        return _plain(self, src, mask, src_key_padding_mask, is_causal)  # type: ignore[no-any-return]
    assert src_key_padding_mask is not None
    x = src
    for layer in self.layers:
        x = layer(x, src_mask=None, is_causal=False, src_key_padding_mask=src_key_padding_mask)
    valid = src_key_padding_mask.logical_not()
    places = torch.arange(valid.shape[1], device=valid.device)
    is_nested = valid.eq(places < valid.sum(1, keepdim=True)).all()
    x = x.masked_fill((is_nested & ~valid).unsqueeze(2), 0.0)
    return x if self.norm is None else self.norm(x)  # type: ignore[no-any-return]


def may_be_nested(self: Any, src: torch.Tensor, padding: torch.Tensor | None) -> bool:
    """Whether eager asks whether every sequence comes before its padding (torch/nn/modules/transformer.py)."""
    if padding is None or src.dim() != 3 or padding.dim() != 2 or src.device.type not in ("cpu", "cuda"):
        return False
    layer = self.layers[0]
    if not getattr(self, "use_nested_tensor", False) or not getattr(self, "mask_check", True) or layer.training:
        return False
    if not torch.backends.mha.get_fastpath_enabled() or torch.is_autocast_enabled():
        return False
    attention = layer.self_attn
    weights = (attention.in_proj_weight, attention.in_proj_bias, attention.out_proj.weight, attention.out_proj.bias)
    norms = (layer.norm1.weight, layer.norm1.bias, layer.norm2.weight, layer.norm2.bias)
    linears = (layer.linear1.weight, layer.linear1.bias, layer.linear2.weight, layer.linear2.bias)
    given = (src, *weights, *norms, *linears)
    if torch.overrides.has_torch_function(given):
        return False
    return not (torch.is_grad_enabled() and any(x.requires_grad for x in given))


def _apply(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    return tx.inline(tx.wrap_known(encoder), args, kwargs)


RULES = (Rule(_theirs, _apply, Effect.GRAPH),)
