"""Random operations: eager's numbers for the same seed, and the generator left where eager leaves it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import treadle

PROGRAMS = {
    "dropout": lambda x: F.dropout(x, 0.3) * 2,
    "two dropouts": lambda x: F.dropout(F.dropout(x, 0.1).relu(), 0.5),
    "rand": lambda x: x + torch.rand(x.shape, device=x.device),
    "rand_like": lambda x: torch.rand_like(x) * x,
    "randn": lambda x: torch.randn(x.shape[0], device=x.device)[:, None] + x,
    "randn_like": lambda x: x + torch.randn_like(x) * 0.1,
    "randint": lambda x: torch.randint(0, 10, x.shape, device=x.device) + x,
    "randperm": lambda x: x[torch.randperm(x.shape[0], device=x.device)],
    "bernoulli": lambda x: torch.bernoulli(torch.sigmoid(x)) + 1,
    "bernoulli number": lambda x: torch.empty_like(x).bernoulli_(0.25) * x,
    "normal": lambda x: torch.empty_like(x).normal_(2, 3) + x,
    "uniform": lambda x: torch.empty_like(x).uniform_(-1, 1) + x,
    "exponential": lambda x: torch.empty_like(x).exponential_() + x,
    "multinomial": lambda x: torch.multinomial(torch.softmax(x, -1), 3) + 1,
    "dropout1d": lambda x: F.dropout1d(x[None], 0.5) * 2,
    "attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None], dropout_p=0.2),
    "attention, masked": lambda x: F.scaled_dot_product_attention(
        x[None, None], x[None, None], x[None, None], (x @ x.T > 0)[None, None], dropout_p=0.2
    ),
    "attention, half": lambda x: F.scaled_dot_product_attention(
        x[None, None].half(), x[None, None].half(), x[None, None].half(), dropout_p=0.25
    ),
    "half": lambda x: F.dropout(x.half(), 0.5) + 1,
}
SHAPES = ((3, 5), (257, 64), (1000, 1003))


@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_and_generator(name: str, device: torch.device) -> None:
    function = PROGRAMS[name]
    compiled = treadle.compile(function)
    for shape in SHAPES:
        x = torch.randn(shape, device=device)
        for seed in (0, 1234567890123):
            torch.manual_seed(seed)
            expected = [function(x), function(x), torch.rand(3, device=device)]
            torch.manual_seed(seed)
            torch.testing.assert_close([compiled(x), compiled(x), torch.rand(3, device=device)], expected)


def test_gradients_use_the_masks_of_forward(device: torch.device) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (F.dropout(x.sin(), 0.4) * F.dropout(x, 0.6)).sum()

    compiled = treadle.compile(function)
    found = []
    for run in (function, compiled, compiled):
        x = torch.linspace(-3, 3, 4097, device=device, requires_grad=True)
        torch.manual_seed(5)
        run(x).backward()
        found.append((x.grad, torch.rand(2, device=device)))
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", [None, "bool", "float"])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_with_dropout_in_training(
    dtype: torch.dtype, mask: str | None, causal: bool, device: torch.device
) -> None:
    """The same mask of dropout in forward and backward, at sizes for which PyTorch takes different kernels."""
    if mask is not None and causal:
        pytest.skip("PyTorch takes one or the other")

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return F.scaled_dot_product_attention(q * 2, k, v.sin(), bias, dropout_p=0.125, is_causal=causal)

    compiled = treadle.compile(function)
    for batch, length, keys, size in ((2, 64, 64, 32), (2, 40, 40, 32), (3, 40, 52, 24), (3, 7, 7, 20), (2, 33, 33, 9)):
        torch.manual_seed(batch + length)
        shapes = ((batch, 4, length, size), (batch, 4, keys, size), (batch, 4, keys, size))
        tensors = [torch.randn(shape, device=device, dtype=dtype) for shape in shapes]
        bias = None if mask is None else torch.randn(batch, 1, length, keys, device=device, dtype=dtype)
        bias = bias > -1 if mask == "bool" and bias is not None else bias
        found = []
        for run in (function, compiled):
            leaves = [t.clone().requires_grad_() for t in tensors]
            torch.manual_seed(5)
            result = run(*leaves, bias)
            result.sum().backward()
            found.append((result, *(leaf.grad for leaf in leaves), torch.rand(3, device=device)))
        torch.testing.assert_close(found[1], found[0], rtol=2e-2, atol=2e-2)


def test_state_of_the_generator(device: torch.device) -> None:
    def state() -> torch.Tensor:
        return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()

    function = PROGRAMS["two dropouts"]
    x = torch.randn(100, 7, device=device)
    states = []
    for run in (function, treadle.compile(function)):
        torch.manual_seed(9)
        run(x)
        states.append(state())
    assert torch.equal(states[0], states[1])


def test_other_generators_are_left_alone(device: torch.device) -> None:
    compiled = treadle.compile(lambda x: F.dropout(x, 0.5))
    before = torch.get_rng_state()
    compiled(torch.ones(10, device=device))
    if device.type == "cuda":
        assert torch.equal(torch.get_rng_state(), before)
