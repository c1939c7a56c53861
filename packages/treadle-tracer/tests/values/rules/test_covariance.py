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
    "torch.cov(x, fweights=torch.arange(1, 8))": True,
    "torch.cov(x[0], fweights=torch.arange(7, dtype=torch.int32), correction=3)": True,
    "torch.cov(x, aweights=x.detach().abs()[0].double(), fweights=None)": True,
    "torch.cov(x, aweights=x.abs()[0] + 0.5, correction=0)": True,
    "torch.cov(x, aweights=x.abs()[1] + 0.5, fweights=torch.arange(7))": True,
    "torch.cov(torch.complex(x, x * x), fweights=torch.arange(7))": True,
    "torch.cov(x, fweights=torch.arange(7) - 1)": False,
    "torch.cov(x, fweights=torch.zeros(7, dtype=torch.int64))": False,
    "torch.cov(x, fweights=torch.eye(7, dtype=torch.int64)[1])": False,
    "torch.cov(x, aweights=-x.abs()[0] - 1)": False,
    "torch.cov(x, fweights=torch.arange(6))": False,
    "torch.cov(x, fweights=torch.ones(7))": False,
    "torch.cov(x, aweights=torch.arange(7))": False,
    "torch.cov(x, fweights=torch.ones(7, 1, dtype=torch.int64))": False,
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


def test_a_number_of_observations_that_data_tell():
    def program(x, chosen):
        found = x[:, chosen]
        return torch.cov(found), torch.corrcoef(found), torch.cov(found[0], correction=0)

    run, said = compiled(program)
    for count in (5, 3, 6, 2, 4):
        x = torch.randn(3, 7, requires_grad=True)
        found, expected = (function(x, torch.arange(7) < count) for function in (run, program))
        assert [str(one.tolist()) for one in found] == [str(one.tolist()) for one in expected]
        grads = [torch.autograd.grad(sum(one.sum() for one in ones), x)[0] for ones in (found, expected)]
        torch.testing.assert_close(*grads)
    assert not said.breaks and len(said.graphs) == 1
    with pytest.warns(UserWarning, match="degrees of freedom"):
        run(torch.randn(3, 7), torch.arange(7) < 1)
