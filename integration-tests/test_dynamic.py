"""Models over batch sizes and sequence lengths: right everywhere, compiled twice.

The whole models over the whole matrix: benchmarks/dynamic_matrix.py.
"""

from __future__ import annotations

import pytest
import torch

import treadle
import zoo
from torchvision_schemas import define_missing_schemas

SMALL = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def _bert():
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(**SMALL))


def _gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2))


def _llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**SMALL, num_key_value_heads=1))


def _t5():
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    return T5ForConditionalGeneration(T5Config(vocab_size=50, **sizes))


def _vit():
    from transformers import ViTConfig, ViTModel

    small = {name: size for name, size in SMALL.items() if name != "vocab_size"}
    return ViTModel(ViTConfig(**small, image_size=32, patch_size=8))


def _resnet():
    from transformers import ResNetConfig, ResNetModel

    return ResNetModel(ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]))


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


ORDERS = {
    "ones last": [(2, 8), (3, 17), (16, 100), (7, 64), (3, 1), (1, 1), (1, 17), (1, 8), (7, 1), (2, 9)],
    "ones first": [(1, 64), (3, 1), (4, 64), (1, 1), (1, 17), (7, 8), (2, 1), (16, 100)],
    "one at a time": [(1, 8), (1, 17), (1, 1), (2, 8), (3, 1), (1, 100)],
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("build", [_bert, _gpt2, _llama, _t5])
def test_token_models_are_compiled_twice(build, order):
    torch.manual_seed(0)
    define_missing_schemas()
    model = build().eval()
    compiled = treadle.compile(model)
    with torch.no_grad():
        for batch, length in ORDERS[order]:
            inputs = {"input_ids": torch.randint(50, (batch, length))}
            if build is _t5:
                inputs["decoder_input_ids"] = torch.randint(50, (batch, length))
            agree(compiled, model, inputs)
    # where sizes change one after the other, each change is one compile
    assert treadle.stats().graphs <= (3 if order == "one at a time" else 2)
    assert treadle.stats().eager_graphs == ()


@pytest.mark.parametrize("batches", [(2, 3, 1, 16, 7), (4, 1, 2), (1, 4, 1, 3)])
@pytest.mark.parametrize(
    ("build", "name", "size"), [(_vit, "pixel_values", 32), (_resnet, "pixel_values", 32), (Vision, "x", 8)]
)
def test_image_models_are_compiled_twice(build, name, size, batches):
    torch.manual_seed(0)
    define_missing_schemas()
    model = build().eval()
    compiled = treadle.compile(model)
    with torch.no_grad():
        for batch in batches:
            agree(compiled, model, {name: torch.randn(batch, 3, size, size)})
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


@pytest.mark.parametrize("requires_grad", [False, True])
def test_dropout_of_everything_draws_nothing(requires_grad):
    def f(x, p):
        return torch.nn.functional.dropout(x * 2, p) + x.sin() + torch.rand(2)

    compiled = treadle.compile(f, dynamic=True)
    for p in (0.5, 1.0, 0.25, 0.0, 1.0):
        for size in (2, 3):
            ends = []
            for function in (f, compiled):
                torch.manual_seed(0)
                x = torch.ones(size, 2, requires_grad=requires_grad)
                ends.append((function(x, p).detach(), torch.rand(1)))
            torch.testing.assert_close(ends[0], ends[1])


RANDOM_FACTORIES = {
    "randn": lambda x: torch.randn(x.shape, generator=None, dtype=x.dtype, layout=torch.strided),
    "rand": lambda x: torch.rand(*x.shape, generator=None),
    "randint": lambda x: torch.randint(0, 9, x.shape, generator=None),
    "randint below": lambda x: torch.randint(9, x.shape, generator=None),
    "randperm": lambda x: torch.randperm(x.shape[0], generator=None),
    "normal": lambda x: torch.normal(0.0, 1.0, x.shape, generator=None),
}


@pytest.mark.parametrize("name", RANDOM_FACTORIES)
def test_no_generator_is_the_default_one(name):
    """As libraries pass on an argument that nobody has given. PyTorch's overloads with a generator take no symbolic sizes."""
    function = RANDOM_FACTORIES[name]
    compiled = treadle.compile(function, fullgraph=True)
    for rows in (2, 3, 4, 5):
        found = []
        for run in (function, compiled):
            torch.manual_seed(rows)
            found.append((run(torch.ones(rows, 3)), torch.rand(1)))
        torch.testing.assert_close(*found, rtol=0, atol=0)
    assert treadle.stats().graphs <= 2 and treadle.stats().eager_graphs == ()


@pytest.mark.parametrize("leaves_unprofitable", [True, False])
def test_columns_of_matrices_whose_widths_change(leaves_unprofitable):
    """The sizes stay the same and the strides do not: one graph for each of the first two layouts, and one for all others."""

    def program(column):
        grown = (column.sin() * 2 + column.cos()).exp()
        return grown.sum(), column.view(-1, 1) * 2, column[1:], grown.cumsum(0)

    fast = treadle.compile(program, options={"leave_unprofitable": leaves_unprofitable})
    before = treadle.stats().graphs
    for width in (*range(4, 14), 1, 2, 40):
        mine = torch.randn(64, width, requires_grad=True)
        theirs = mine.detach().clone().requires_grad_()
        found, expected = fast(mine[:, width // 2]), program(theirs[:, width // 2])
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()
        sum(part.sum() for part in found).backward()
        sum(part.sum() for part in expected).backward()
        torch.testing.assert_close(mine.grad, theirs.grad)
    assert treadle.stats().graphs - before <= 4
