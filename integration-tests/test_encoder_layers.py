"""Transformers of `torch.nn` in eval mode, where eager calls one operator per layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import treadle

BATCH, FEATURES, HEADS = 3, 16, 4


def encoder(**options: Any) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(FEATURES, HEADS, 32, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


def masks(length: int, batch: int = BATCH) -> dict[str, dict[str, torch.Tensor]]:
    padded = torch.arange(length)[None] >= torch.randint(1, length + 1, (batch, 1))
    causal = nn.Transformer.generate_square_subsequent_mask(length)
    return {
        "none": {},
        "causal": {"mask": causal},
        "padding": {"src_key_padding_mask": padded},
        "both": {"mask": causal.isinf(), "src_key_padding_mask": padded},
    }


@torch.no_grad()
@pytest.mark.parametrize("mask", masks(5))
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoders_at_changing_lengths(activation: str, norm_first: bool, mask: str) -> None:
    model = encoder(activation=activation, norm_first=norm_first, batch_first=True)
    compiled = treadle.compile(model, fullgraph=True)
    for length in (5, 9, 14, 3, 6):
        x, given = torch.randn(BATCH, length, FEATURES), masks(length)[mask]
        torch.testing.assert_close(compiled(x, **given), model(x, **given), rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    model = encoder(batch_first=True).to(dtype)
    x = torch.randn(BATCH, 7, FEATURES, dtype=dtype)
    tolerance = 1e-10 if dtype is torch.float64 else 0.05
    torch.testing.assert_close(treadle.compile(model)(x), model(x), rtol=tolerance, atol=tolerance)


@torch.no_grad()
@pytest.mark.parametrize("norm", [None, nn.LayerNorm(FEATURES)])
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("as_float", [True, False])
def test_padding_behind_sequences_is_zero(norm: nn.Module | None, aligned: bool, as_float: bool) -> None:
    """Eager makes nested tensors of sequences that all come before their padding."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(FEATURES, HEADS, 32, batch_first=True), 2, norm).eval()
    compiled = treadle.compile(model, fullgraph=True)
    for length in (6, 8, 5):
        padding = masks(length)["padding"]["src_key_padding_mask"]
        if not aligned:
            padding[0] = torch.arange(length) == 1
        given = torch.zeros(padding.shape).masked_fill(padding, -torch.inf) if as_float else padding
        x = torch.randn(BATCH, length, FEATURES)
        expected = model(x, src_key_padding_mask=given)
        torch.testing.assert_close(compiled(x, src_key_padding_mask=given), expected, rtol=1e-4, atol=1e-5)


def test_padding_with_gradients_and_in_training() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(FEATURES, HEADS, 32, 0.0, batch_first=True), 2)
    compiled, given, x = treadle.compile(model), masks(6)["padding"], torch.randn(BATCH, 6, FEATURES)
    for mode in (True, False):
        model.train(mode)
        torch.testing.assert_close(compiled(x, **given), model(x, **given), rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize(
    "function",
    [
        nn.TransformerEncoderLayer(FEATURES, HEADS, 32, batch_first=True).eval(),
        lambda x, a=nn.MultiheadAttention(FEATURES, HEADS, batch_first=True).eval(): a(x, x, x, need_weights=False)[0],
        torch.linalg.pinv,
    ],
)
def test_operators_whose_kernels_autocast_reaches(function: Any) -> None:
    """Their results are of bfloat16, which a graph takes for float32: what followed read other memory."""
    compiled = treadle.compile(lambda x: function(x + 1).exp() * 2)
    x = torch.rand(BATCH, 7, FEATURES)
    with torch.autocast("cpu"):
        expected, made = function(x + 1).exp() * 2, compiled(x)
    assert made.dtype is expected.dtype
    torch.testing.assert_close(made, expected, rtol=0.05, atol=0.05)


@torch.no_grad()
@pytest.mark.parametrize("weights", [False, True])
def test_attention_alone(weights: bool) -> None:
    attention = nn.MultiheadAttention(FEATURES, HEADS, batch_first=True).eval()

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        own = attention(x, x, x, need_weights=weights)
        return *own, *attention(x, y, y, need_weights=weights, average_attn_weights=False)

    x, y = torch.randn(2, BATCH, 5, FEATURES)
    for made, expected in zip(treadle.compile(function)(x, y), function(x, y), strict=True):
        if expected is None:
            assert made is None
        else:
            torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-5)


def test_a_frozen_encoder_below_a_trained_head() -> None:
    """The encoder's inputs require no gradients, and its weights neither: eager takes the operator for the whole layer."""
    model, head = encoder(batch_first=True).requires_grad_(False), nn.Linear(FEATURES, 2)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return head(model(x)).square().mean()

    x = torch.randn(BATCH, 7, FEATURES)
    (expected,) = torch.autograd.grad(loss(x), [head.weight])
    (made,) = torch.autograd.grad(treadle.compile(loss)(x), [head.weight])
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_length_that_depends_on_data() -> None:
    model = encoder(batch_first=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        return model(x[x[:, 0] > 0][None])

    compiled = treadle.compile(function)
    for length in (9, 14, 30):
        x = torch.randn(length, FEATURES)
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_empty_batches_and_lengths() -> None:
    model = encoder(batch_first=True)
    compiled = treadle.compile(model)
    for shape in ((0, 5, FEATURES), (2, 0, FEATURES), (2, 5, FEATURES)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
