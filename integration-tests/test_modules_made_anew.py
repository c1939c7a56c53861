"""Modules made anew at every call, and layers that share a frame, through the whole stack: values, gradients, optimizer steps."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import treadle

MODULES = {
    "linear": (lambda: nn.Linear(6, 6), (4, 6)),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), (2, 3, 8, 8)),
    "norm": (lambda: nn.Sequential(nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 2)), (4, 6)),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (2, 5, 8)),
    "recurrent": (lambda: nn.GRU(6, 6), (4, 2, 6)),
    "lists": (lambda: Lists(), (4, 6)),
    "traversal": (lambda: Traversal(), (4, 6)),
}


class Lists(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.named = nn.ModuleDict({"a": nn.Linear(6, 6), "b": nn.ReLU()})
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(6)), nn.Parameter(torch.ones(6))])

    def forward(self, x):
        for layer, scale in zip(self.layers, self.scales):
            x = layer(x) * scale
        for layer in self.named.values():
            x = layer(x)
        return self.layers[-1](x) + len(self.layers)


class Traversal(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 6), nn.Tanh())

    def forward(self, x):
        penalty = sum(p.square().sum() for p in self.parameters())
        count = sum(1 for m in self.modules() if isinstance(m, nn.Linear))
        names = [name for name, _ in self.named_parameters()]
        return self.b(self.a(x)) * count + penalty + len(names[-1])


def close(a, b):
    return all(torch.allclose(x, y, rtol=1e-4, atol=1e-4) for x, y in zip(flat(a), flat(b), strict=True))


def flat(result):
    return [result] if isinstance(result, torch.Tensor) else [t for part in result for t in flat(part)]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_a_module_made_anew_is_compiled_twice(name, training):
    def program(module, x):
        return module(x)

    make, sizes = MODULES[name]
    fast = treadle.compile(program)
    counts = []
    for _ in range(4):
        module, x = make().train(training), torch.randn(sizes)
        slow = copy.deepcopy(module)
        with torch.set_grad_enabled(training):
            got, want = fast(module, x), program(slow, x)
        assert close(got, want)
        if training:
            for part, result in ((module, got), (slow, want)):
                sum(t.square().sum() for t in flat(result)).backward()
            pairs = zip(module.parameters(), slow.parameters(), strict=True)
            assert all(close(a.grad, b.grad) for a, b in pairs if b.grad is not None)
        assert close(list(module.buffers()), list(slow.buffers()))
        counts.append(treadle.stats().graphs)
    assert counts[1] == counts[-1]


@treadle.disable
def outside(x):
    return None


class Block(nn.Module):
    def __init__(self, index, width):
        super().__init__()
        self.inner, self.norm, self.index = nn.Linear(width, width), nn.LayerNorm(width), index

    def forward(self, x):
        h = torch.relu(self.inner(x))
        outside(h)
        return x + self.norm(h) * (1 + self.index)


class Network(nn.Module):
    def __init__(self, blocks, width=8):
        super().__init__()
        self.blocks = nn.ModuleList(Block(i, width) for i in range(blocks))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
            outside(x)
        return x


@pytest.mark.parametrize("blocks", [3, 6])
def test_layers_that_share_a_graph_are_trained_as_in_eager(blocks):
    torch.manual_seed(0)
    model = Network(blocks)
    slow = copy.deepcopy(model)
    fast = treadle.compile(model)
    steps = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (model, slow)]
    for _ in range(4):
        x = torch.randn(5, 8)
        for module, optimizer in zip((fast, slow), steps, strict=True):
            optimizer.zero_grad()
            module(x).square().mean().backward()
            optimizer.step()
        assert close(list(model.parameters()), list(slow.parameters()))
    with torch.no_grad():
        assert close(fast(x), slow(x))


def test_layers_that_share_a_graph_use_their_own_weights_in_inference():
    """Weights are packed and folded where they are constants. Those of another layer, or changed ones, are never used."""
    torch.manual_seed(0)
    model = Network(5, width=32).eval()
    fast = treadle.compile(model)
    with torch.no_grad():
        for step in range(6):
            x = torch.randn(16, 32)
            assert close(fast(x), model(x))
            block = model.blocks[step % 5]
            if step % 2:
                block.inner.weight.mul_(0.5)
            else:
                block.inner = nn.Linear(32, 32)
