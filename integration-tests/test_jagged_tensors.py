"""Jagged nested tensors through all of Treadle: models whose batches hold sequences of different lengths."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nested import nested_tensor, nested_tensor_from_jagged

import treadle

FEATURES, HEADS = 32, 4


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(FEATURES, FEATURES) for _ in range(4))

    def forward(self, x):
        heads = [f(x).unflatten(-1, [HEADS, -1]).transpose(1, 2) for f in (self.query, self.key, self.value)]
        return self.out(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(FEATURES), nn.LayerNorm(FEATURES)
        self.attention = Attention()
        self.rest = nn.Sequential(nn.Linear(FEATURES, 64), nn.GELU(), nn.Dropout(0.0), nn.Linear(64, FEATURES))

    def forward(self, x):
        x = x + self.attention(self.first(x))
        return x + self.rest(self.second(x))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(50, FEATURES)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(FEATURES, 5)

    def forward(self, tokens):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def alone(model, rows):
    """What the model gives for each sequence as a batch of its own, without nested tensors."""
    found = []
    for row in rows:
        x = model.tokens(row)[None]
        for block in model.blocks:
            x = block(x)
        found.append(model.head(x.mean(1)))
    return torch.cat(found)


def batches(with_ends):
    for seed in range(6):
        torch.manual_seed(seed)
        rows = [torch.randint(0, 50, (int(n),)) for n in torch.randint(1, 20, (3 + seed % 3,))]
        if with_ends:
            yield rows, nested_tensor(rows, layout=torch.jagged)
        else:
            lengths = torch.tensor([len(row) for row in rows])
            yield rows, nested_tensor_from_jagged(torch.cat(rows), F.pad(lengths.cumsum(0), (1, 0)))


@pytest.mark.parametrize("with_ends", [True, False], ids=["known lengths", "lengths in the data"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_inference(mode, with_ends):
    torch.manual_seed(0)
    model = Encoder()
    compiled = treadle.compile(model, fullgraph=mode is torch.no_grad)
    for rows, tokens in batches(with_ends):
        with mode():
            torch.testing.assert_close(compiled(tokens), alone(model, rows), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(compiled(tokens), model(tokens), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("with_ends", [True, False], ids=["known lengths", "lengths in the data"])
def test_training(with_ends):
    torch.manual_seed(0)
    model = Encoder()
    compiled = treadle.compile(model)
    for rows, tokens in batches(with_ends):
        parameters = list(model.parameters())
        wanted = torch.autograd.grad(alone(model, rows).square().sum(), parameters)
        given = torch.autograd.grad(compiled(tokens).square().sum(), parameters)
        torch.testing.assert_close(given, wanted, rtol=1e-3, atol=1e-4)


def test_a_step_of_training_compiled_whole():
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())

    def step(model, optimizer, x, target):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).values(), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = treadle.compile(step)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2) for model in models]
    for seed in range(5):
        torch.manual_seed(seed)
        lengths = [int(n) for n in torch.randint(1, 9, (3,))]
        x = nested_tensor([torch.randn(n, 8) for n in lengths], layout=torch.jagged)
        target = torch.randint(0, 4, (sum(lengths),))
        torch.testing.assert_close(run(models[0], optimizers[0], x, target), step(models[1], optimizers[1], x, target))
    torch.testing.assert_close(models[0].state_dict(), models[1].state_dict())


def test_results_are_jagged_tensors_of_eager():
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    compiled = treadle.compile(model, fullgraph=True)
    for lengths in ((3, 5, 2), (4, 1, 6)):
        x = nested_tensor([torch.randn(n, 8) for n in lengths], layout=torch.jagged, requires_grad=True)
        result = compiled(x) + x  # of one ragged size
        wanted = model(x) + x
        torch.testing.assert_close(result.values(), wanted.values())
        pair = [torch.autograd.grad(one.values().square().sum(), x)[0].values() for one in (result, wanted)]
        torch.testing.assert_close(*pair)


def test_autocast():
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    compiled = treadle.compile(model)
    for lengths in ((3, 5, 2), (4, 1, 6), (2, 2)):
        x = nested_tensor([torch.randn(n, 8) for n in lengths], layout=torch.jagged)
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            given, wanted = compiled(x), model(x)
        assert given.dtype == wanted.dtype == torch.bfloat16
        torch.testing.assert_close(given.values(), wanted.values(), rtol=2e-2, atol=2e-2)


def test_a_loop_over_the_sequences():
    def means(x):
        return torch.stack([row.mean(0) for row in x.unbind()])

    compiled = treadle.compile(means)
    for lengths in ((3, 5, 2), (4, 1, 6), (2, 2), (7, 1, 1, 3)):
        x = nested_tensor([torch.randn(n, 8) for n in lengths], layout=torch.jagged)
        torch.testing.assert_close(compiled(x), means(x))
