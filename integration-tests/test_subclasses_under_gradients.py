"""Quantised weights, tensors of a subclass with a `__torch_dispatch__`, that are trained around, through the whole stack."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import treadle

F = nn.functional
aten = torch.ops.aten


class Quantised(torch.Tensor):
    """8 bits and a scale for each row. Products with it quantise the activations, too."""

    @staticmethod
    def __new__(cls, numbers, scale, dtype=torch.float32):
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=dtype)

    def __init__(self, numbers, scale, dtype=torch.float32):
        self.numbers, self.scale = numbers, scale

    @classmethod
    def of(cls, weight):
        scale = weight.abs().amax(1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale)

    def dequantised(self):
        return self.numbers.to(self.dtype) * self.scale.to(self.dtype)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (aten.t.default, aten.detach.default):
            return cls(func(args[0].numbers), func(args[0].scale), args[0].dtype)
        if func is aten._to_copy.default:
            return cls(args[0].numbers, args[0].scale, kwargs.get("dtype", args[0].dtype))
        plain = [arg.dequantised() if isinstance(arg, Quantised) else arg for arg in args]
        if func is aten.mm.default and isinstance(args[1], Quantised):
            scale = plain[0].abs().amax(1, keepdim=True) / 127 + 1e-6
            plain[0] = (plain[0] / scale).round() * scale
        return func(*plain, **(kwargs or {}))


class Adapted(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(Quantised.of(torch.randn(outputs, inputs) / 4), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.down, self.up = nn.Parameter(torch.randn(2, inputs) / 4), nn.Parameter(torch.randn(outputs, 2) / 4)

    def forward(self, x):
        return F.linear(x, self.weight, None) + self.bias + F.linear(F.linear(x, self.down), self.up)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = Adapted(8, 16), nn.LayerNorm(16), Adapted(16, 4)

    def forward(self, x):
        return self.last(F.gelu(self.norm(self.first(x))))


@pytest.fixture(autouse=True)
def fresh():
    treadle.reset()
    with treadle.config.patch(raise_internal_errors=True):
        yield
    treadle.reset()


def nothing(network):
    pass


def trained(prepare, cast, between=nothing):
    """Losses, gradients of the inputs, and parameters at the end, of some steps on batches of different shapes."""
    torch.manual_seed(0)
    network = Network()
    run = prepare(network)
    parameters = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=0.01)
    found = []
    for shape in ((4, 3, 8), (4, 3, 8), (2, 3, 8), (5, 3, 8), (6, 8)):
        x = torch.randn(shape, requires_grad=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=cast):
            loss = run(x).float().square().mean()
        between(network)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found += [loss.detach(), x.grad]
    return found + [p.detach() for p in parameters]


@pytest.mark.parametrize("cast", (False, True))
def test_low_rank_corrections_of_quantised_weights_are_trained(cast):
    expected, actual = trained(lambda network: network, cast), trained(treadle.compile, cast)
    tolerance = 0.1 if cast else 1e-3  # activations are rounded to 8 bits, and some are between two
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    assert not treadle.stats().breaks


def test_weights_that_change_before_the_derivative_are_refused():
    """Eager quantises with the new ones. A compiled graph has saved the old ones, and says so."""

    def between(network):
        with torch.no_grad():
            network.first.weight.scale.mul_(1.5)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        trained(treadle.compile, False, between)


@pytest.mark.parametrize("cast", (False, True))
def test_inference_over_changing_batches(cast):
    torch.manual_seed(0)
    network = Network()
    run = treadle.compile(network)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=cast):
        for shape in ((4, 3, 8), (2, 3, 8), (5, 3, 8), (6, 2, 8)):
            x = torch.randn(shape)
            tolerance = 0.1 if cast else 1e-3
            torch.testing.assert_close(run(x), network(x), rtol=tolerance, atol=tolerance)
    assert not treadle.stats().breaks


class Squared(torch.Tensor):
    """A number for each channel, which products square."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = [arg.inner**2 if isinstance(arg, Squared) else arg for arg in args]
        return func(*plain, **(kwargs or {}))


WEIGHT = Squared(torch.tensor([1.0, 2.0, 3.0]))


@pytest.mark.parametrize(
    "function",
    [lambda x: (x * WEIGHT).tanh(), lambda x: x.square() * WEIGHT, lambda x: torch.atan2(x, WEIGHT).exp()],
    ids=["through its tangent", "through what it is computed from", "through its own argument"],
)
@pytest.mark.parametrize("allow_unused", [False, True])
def test_a_second_derivative_is_never_lost(function, allow_unused: bool) -> None:
    compiled = treadle.compile(function, fullgraph=True)
    x = torch.tensor([0.5, 0.25, 2.0], requires_grad=True)
    (expected,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    (first,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
    torch.testing.assert_close(first, expected)
    (wanted,) = torch.autograd.grad(expected.square().sum(), x, allow_unused=allow_unused)
    (second,) = torch.autograd.grad(first.square().sum(), x, allow_unused=allow_unused)
    torch.testing.assert_close(second, wanted)
