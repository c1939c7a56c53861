"""Encoder layers and their attention by parts, against the operators that eager calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import treadle_codegen
from treadle_codegen.lower.encoder_layer import masked_softmax, multi_head_attention, transformer_encoder_layer

aten = torch.ops.aten
BATCH, LENGTH, FEATURES, HEADS = 3, 5, 16, 4
MASKS = {0: (LENGTH, LENGTH), 1: (BATCH, LENGTH), 2: (BATCH, HEADS, LENGTH, LENGTH), None: None}


def mask_of(kind: int | None) -> torch.Tensor | None:
    """A mask of a kind in which a row may lack every element."""
    shape = MASKS[kind]
    return None if shape is None else torch.rand(shape) < 0.6


def encoder_arguments(dtype: torch.dtype, gelu: bool, norm_first: bool) -> tuple[Any, ...]:
    layer = nn.TransformerEncoderLayer(FEATURES, HEADS, 32, dtype=dtype)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    attention = layer.self_attn
    return (
        *(torch.randn(BATCH, LENGTH, FEATURES, dtype=dtype), FEATURES, HEADS),
        *(attention.in_proj_weight, attention.in_proj_bias, attention.out_proj.weight, attention.out_proj.bias),
        *(gelu, norm_first, layer.norm1.eps),
        *(layer.norm1.weight, layer.norm1.bias, layer.norm2.weight, layer.norm2.bias),
        *(layer.linear1.weight, layer.linear1.bias, layer.linear2.weight, layer.linear2.bias),
    )


def close(made: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 0.1}[made.dtype]
    torch.testing.assert_close(made, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


@torch.no_grad()
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize(("gelu", "norm_first"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_layers(dtype: torch.dtype, gelu: bool, norm_first: bool, kind: int | None) -> None:
    arguments = (*encoder_arguments(dtype, gelu, norm_first), mask_of(kind), kind)
    close(transformer_encoder_layer(*arguments), aten._transformer_encoder_layer_fwd(*arguments))


@torch.no_grad()
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("weighted", "average"), [(False, True), (True, True), (True, False)])
def test_attention(dtype: torch.dtype, kind: int | None, weighted: bool, average: bool) -> None:
    x, features, heads, *weights = encoder_arguments(dtype, False, False)[:7]
    arguments = (x, x, x, features, heads, *weights, mask_of(kind), weighted, average, kind)
    made, expected = multi_head_attention(*arguments), aten._native_multi_head_attention(*arguments)
    close(made[0], expected[0])
    if weighted:
        close(made[1], expected[1])
    else:
        assert made[1] is expected[1] is None


@torch.no_grad()
def test_what_stays_whole() -> None:
    x, features, heads, *weights = encoder_arguments(torch.float32, False, False)[:7]
    other = x + 1
    assert multi_head_attention(x, other, other, features, heads, *weights, None, False) is NotImplemented
    assert multi_head_attention(x[:0], x[:0], x[:0], features, heads, *weights) is NotImplemented
    assert multi_head_attention(x, x, x, features, 3, *weights, None, False) is NotImplemented
    assert multi_head_attention(x[0], x[0], x[0], features, heads, *weights, None, False) is NotImplemented
    assert transformer_encoder_layer(x[0], *encoder_arguments(torch.float32, False, False)[1:]) is NotImplemented
    on_gpu = x.to("meta")
    assert multi_head_attention(on_gpu, on_gpu, on_gpu, features, heads, *weights, None, False) is NotImplemented


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_softmax_with_a_mask(kind: int) -> None:
    scores, mask = torch.randn(BATCH, HEADS, LENGTH, LENGTH), mask_of(kind)
    assert mask is not None
    mask[(0,) * (mask.dim() - 1)] = True  # a row without an element
    made, expected = masked_softmax(scores, mask, 3, kind), aten._masked_softmax(scores, mask, 3, kind)
    assert expected.isnan().any()
    torch.testing.assert_close(made, expected, equal_nan=True)
    torch.testing.assert_close(masked_softmax(scores, mask, -1, kind), expected, equal_nan=True)
    assert masked_softmax(scores, mask.to(torch.uint8), 3, kind) is NotImplemented
    assert masked_softmax(scores, mask, 2, kind) is NotImplemented


def test_the_table_has_these_rules() -> None:
    rules = treadle_codegen.decompositions()
    assert rules[aten._transformer_encoder_layer_fwd.default] is transformer_encoder_layer
    assert rules[aten._native_multi_head_attention.default] is multi_head_attention
    assert rules[aten._masked_softmax.default] is masked_softmax
