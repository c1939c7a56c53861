"""Encoders that eager runs on nested tensors: one graph, with zeros behind the sequences."""

import pytest
import torch
from compile_runs import compiled
from torch import nn

from treadle_tracer.values.rules.nested_encoders import may_be_nested


def encoder(**options):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, **options).eval()


def padding(*lengths):
    return torch.arange(max(lengths))[None] >= torch.tensor(lengths)[:, None]


@torch.no_grad()
@pytest.mark.parametrize("norm", [None, nn.LayerNorm(8)])
def test_what_is_padded_is_zero_before_the_last_norm(norm):
    model = encoder(norm=norm)
    fn, recorder = compiled(lambda x, given: model(x, src_key_padding_mask=given))
    for lengths in ((2, 5, 3), (5, 1, 4)):
        x, given = torch.randn(3, 5, 8), padding(*lengths)
        torch.testing.assert_close(fn(x, given), model(x, src_key_padding_mask=given), rtol=1e-4, atol=1e-5)
    between = padding(2, 5, 3)
    between[0, 0] = True  # a gap before the sequence: eager makes no nested tensor
    torch.testing.assert_close(fn(x, between), model(x, src_key_padding_mask=between), rtol=1e-4, atol=1e-5)
    assert len(recorder.graphs) == 1


def test_when_eager_asks_for_the_order_of_padding():
    model, x, given = encoder(), torch.randn(2, 3, 8), padding(1, 3)
    with torch.no_grad():
        assert may_be_nested(model, x, given)
        assert not may_be_nested(model, x, None)
        assert not may_be_nested(model, x[0], given[0])
        assert not may_be_nested(encoder(enable_nested_tensor=False), x, given)
        assert not may_be_nested(encoder(mask_check=False), x, given)
        assert not may_be_nested(encoder().train(), x, given)
        with torch.autocast("cuda", enabled=torch.cuda.is_available()):
            assert may_be_nested(model, x, given) != torch.cuda.is_available()
    assert not may_be_nested(model, x, given)  # its weights require gradients
    assert may_be_nested(model.requires_grad_(False), x, given)


@torch.no_grad()
def test_kernels_that_autocast_reaches_break_the_graph():
    model, x = encoder(), torch.randn(2, 3, 8)
    fn, recorder = compiled(lambda x: model(x) + 1)
    with torch.autocast("cpu"):
        made, expected = fn(x), model(x) + 1
    assert made.dtype is expected.dtype
    assert "casts-inside" in {reason.code for reason in recorder.breaks}
