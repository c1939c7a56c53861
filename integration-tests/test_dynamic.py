"""Models over batch sizes and sequence lengths: right everywhere, compiled twice unless the model itself looks at a size of 1.

The whole models over the whole matrix: benchmarks/dynamic_matrix.py.
"""

from __future__ import annotations

import itertools

import pytest
import torch

import treadle
import zoo
from torchvision_schemas import define_missing_schemas


def _bert():
    from transformers import BertConfig, BertModel

    return BertModel(
        BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    )


def _llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return LlamaForCausalLM(LlamaConfig(vocab_size=50, **sizes))


class Vision(torch.nn.Module):
    """Convolutions, batch statistics, attention over patches, a head."""

    def __init__(self):
        super().__init__()
        self.patches = torch.nn.Conv2d(3, 8, 4, 4)
        self.norm = torch.nn.BatchNorm2d(8)
        self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x):
        x = self.norm(self.patches(x)).relu().flatten(2).transpose(1, 2)
        return self.head(self.layer(x).mean(1))


def agree(compiled, model, inputs):
    for have, want in zip(zoo.tensors_of(compiled(**inputs)), zoo.tensors_of(model(**inputs)), strict=True):
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-5)
        assert have.stride() == want.stride()


@pytest.mark.parametrize(
    ("build", "compiles", "with_ones"),
    [
        # `q_length > 1` in the attention of transformers: a sequence of 1 is a case of its own
        (_bert, 2, 3),
        # and `batch_size != position_ids.shape[0]`, where position_ids has one row
        (_llama, 2, 5),
    ],
)
def test_token_models(build, compiles, with_ones):
    torch.manual_seed(0)
    define_missing_schemas()
    model = build().eval()
    compiled = treadle.compile(model)
    with torch.no_grad():
        for batch, length in [(2, 8), (3, 17), (16, 100), *itertools.product((2, 4, 7), (8, 17, 64))]:
            agree(compiled, model, {"input_ids": torch.randint(50, (batch, length))})
        assert treadle.stats().graphs == compiles
        for batch, length in [(3, 1), (1, 1), (1, 17), (1, 8), (7, 1), (2, 9)]:
            agree(compiled, model, {"input_ids": torch.randint(50, (batch, length))})
    assert treadle.stats().graphs <= with_ones
    assert treadle.stats().eager_graphs == ()


@pytest.mark.parametrize("batches", [(2, 3, 1, 16, 7), (4, 1, 2), (1, 4, 1, 3)])
def test_an_image_model_is_compiled_twice(batches):
    torch.manual_seed(0)
    model = Vision().eval()
    compiled = treadle.compile(model)
    with torch.no_grad():
        for batch in batches:
            agree(compiled, model, {"x": torch.randn(batch, 3, 8, 8)})
    assert treadle.stats().graphs == 2
    assert treadle.stats().eager_graphs == ()


def test_an_int_argument_is_compiled_twice():
    def scaled(x, n):
        return x * n + x[:n].sum(0)

    compiled = treadle.compile(scaled)
    for n in range(1, 12):
        x = torch.randn(12, 4)
        torch.testing.assert_close(compiled(x, n), scaled(x, n))
    assert treadle.stats().graphs == 2
    assert treadle.stats().eager_graphs == ()
