"""float16 and bfloat16: what follows from elements in another dtype follows from the elements as eager has them, rounded."""

from __future__ import annotations

import pytest
import torch

import treadle

HALVES = torch.tensor([1.0, -2.0, 3e4, 1e-7, 0.1], dtype=torch.float16)
NARROW = (torch.arange(64.0) + 1000).to(torch.bfloat16)

PROGRAMS = {
    "overflow": lambda x: torch.isinf(x * 10),
    "difference of infinities": lambda x: torch.isnan((x * 10).float() - (x * 10).float()),
    "equal when rounded": lambda x: (x * 0.3333) == (x * 0.3334),
    "underflow": lambda x: (x * 1e-3).bool(),
    "underflow in a condition": lambda x: torch.where((x * 1e-3) == 0, 5.0, x),
    "any": lambda x: (x[3:4] * 1e-3).any(),
    "all": lambda x: (x * 1e-3).all(),
    "count": lambda x: torch.count_nonzero(x * 1e-3),
    "integers": lambda x: (x * 0.37).long(),
    "wider": lambda x: (x * 0.37).float(),
    "widest": lambda x: (x * 0.37).double() * 1e-3,
    "beside a wider one": lambda x: (x * 0.37) + torch.ones(1),
    "where the largest is": lambda x: (lambda y: y == y.max())(x * 0.3),
    "what is returned": lambda x: (lambda y: (y, y.double() == (x * 0.3).double()))(x * 0.3),
    "first of equals": lambda x: (x * 0.01).argmax(),
    "first of equals with values": lambda x: (x * 0.01).max(0),
    "the other low precision": lambda x: (x * 10).bfloat16() if x.dtype == torch.float16 else (x * 10).half(),
}


@pytest.mark.parametrize("x", [HALVES, NARROW], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_in_eager(name, x):
    expected, found = PROGRAMS[name](x), treadle.compile(PROGRAMS[name])(x)
    for want, have in zip(*(r if isinstance(r, tuple) else (r,) for r in (expected, found)), strict=True):
        torch.testing.assert_close(have, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_integers_beside_them_are_rounded(low, dtype):
    x = torch.tensor([2048, 2050, 2048, 1.0]).to(low)
    n = torch.tensor([2049, 2049, 2047, 1]).to(dtype)
    f = lambda x, n: (x < n, x <= n, x == n, n >= x, torch.maximum(x, n), x + n, n - x, torch.where(x > 0, n, x))  # noqa: E731
    for want, have in zip(f(x, n), treadle.compile(f)(x, n), strict=True):
        assert torch.equal(have, want) and have.dtype == want.dtype


def test_a_large_integer_is_infinite_in_float16():
    x, n = torch.tensor([1e-4, 1.0], dtype=torch.float16), torch.tensor([2**20, 2])
    assert torch.equal(treadle.compile(torch.mul)(x, n), x * n)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_powers_of_two_beyond_the_dtype(dtype):
    x = torch.tensor([1.0, 3e30, 1e-30, 0.0, -1.0], dtype=dtype)
    exponents = torch.tensor([2000, -1100 if dtype == torch.float64 else -200, 128, 2000, 3])
    f = treadle.compile(lambda x, n: torch.ldexp(x, n) + 1)
    assert torch.equal(f(x, exponents).nan_to_num(7.0), (torch.ldexp(x, exponents) + 1).nan_to_num(7.0))


def test_backward_computes_again_what_forward_computed():
    """The norm's statistics are saved; its input is computed again, with the roundings that it had when they were computed.

    The mean square of a layer norm's result hardly depends on its input: the gradient is a small difference of large numbers.
    """
    dropout, layer_norm = torch.nn.functional.dropout, torch.nn.functional.layer_norm

    def loss(x, w, y):
        first = dropout(x @ w, 0.1) + y
        second = dropout(layer_norm(first, (64,)).to(w.dtype) @ w, 0.1) + first
        return layer_norm(second, (64,)).square().mean()

    torch.manual_seed(0)
    given = [
        (torch.randn(128, 64) * 0.02).bfloat16(),
        (torch.randn(64, 64) * 0.02).bfloat16(),
        torch.randn(128, 64) * 0.02,
    ]
    gradients = []
    for function, inputs in (loss, given), (treadle.compile(loss), given), (loss, [one.double() for one in given]):
        inputs = [one.clone().requires_grad_() for one in inputs]
        torch.manual_seed(1)
        gradients.append(torch.autograd.grad(function(*inputs), inputs))
    for eager, found, exact in zip(*gradients, strict=True):
        assert (found - exact).abs().max() <= 4 * (eager - exact).abs().max()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_at_several_sizes(dtype):
    """With symbolic sizes, products in float32 were compiled inside of autocast, which made their results 16-bit numbers."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.GELU(), torch.nn.Linear(16, 3))
    with treadle.config.patch(raise_internal_errors=True, leave_unprofitable=False):
        treadle.reset()
        compiled = treadle.compile(model)
        for rows in (16, 24, 40):
            x = torch.randn(rows, 6)
            with torch.autocast("cpu", dtype=dtype):
                found, expected = compiled(x), model(x)
            assert found.dtype == expected.dtype == dtype
            torch.testing.assert_close(found, expected, atol=1e-2, rtol=1e-2)
            gradients = [torch.autograd.grad(y.float().sum(), model[0].weight)[0] for y in (found, expected)]
            torch.testing.assert_close(*gradients, atol=2e-2, rtol=2e-2)
