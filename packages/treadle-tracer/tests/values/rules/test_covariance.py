"""`torch.cov` and `torch.corrcoef` against eager, bit for bit, with gradients."""

from __future__ import annotations

import warnings

import pytest
import torch
from compile_runs import compiled

CALLS = {
    "torch.cov(x)": True,
    "x.cov()": True,
    "torch.cov(x, correction=0)": True,
    "x.cov(correction=2)": True,
    "torch.cov(x.t())": True,
    "torch.corrcoef(x)": True,
    "x.corrcoef()": True,
    "torch.cov(x[0])": True,
    "torch.corrcoef(x[0])": True,
    "torch.cov(x[0, 0], correction=0)": True,
    "torch.corrcoef(torch.complex(x, x * x))": True,
    "torch.cov(x, correction=7)": False,
    "torch.cov(x, correction=8)": False,
    "torch.cov(x, fweights=torch.arange(1, 8))": False,
    "torch.cov(x, aweights=x.detach().abs()[0], fweights=None)": False,
    "torch.cov(x.expand(2, 3, 7))": False,
    "torch.cov(x > 0)": False,
    "torch.cov(x, 1)": False,
}


def _outcome(function, x):
    x = x.clone().requires_grad_(x.is_floating_point())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            result = function(x)
        except (RuntimeError, TypeError) as error:
            return str(error)
    if result.requires_grad:
        result.abs().sum().backward()
    return str(result.detach().tolist()), str(x.grad), result.dtype, len(said)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.int64))
@pytest.mark.parametrize("call", CALLS)
def test_calls(call, dtype):
    program = eval(f"lambda x: {call}", {"torch": torch})
    run, said = compiled(program)
    torch.manual_seed(0)
    for scale in (1, 10, 1):
        x = (torch.randn(3, 7) * 5 * scale).to(dtype)
        assert _outcome(run, x) == _outcome(program, x)
    if dtype is not torch.int64 or "complex" not in call:
        assert not (CALLS[call] and said.breaks), said.codes()


def test_sizes_that_change():
    run, _ = compiled(lambda x: (torch.cov(x), torch.corrcoef(x)))
    for count in (7, 5, 6, 2, 1, 7):
        x = torch.randn(3, count)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert str(run(x)) == str((torch.cov(x), torch.corrcoef(x)))
