"""Floats that torch functions take as plain numbers stay symbolic: two compiles for any number of values."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled
from torch.nn import functional as F

W, B = torch.linspace(-1, 2, 8), torch.linspace(3, 1, 8)
MASK = torch.ones(4, 4, dtype=torch.bool).tril()

FUNCTIONS = {
    "layer_norm": lambda x, f: F.layer_norm(x, (8,), W, B, f),
    "layer_norm of nothing": lambda x, f: F.layer_norm(x, (4, 8), eps=f),
    "torch.layer_norm": lambda x, f: torch.layer_norm(x, (8,), W, None, f, False),
    "rms_norm": lambda x, f: F.rms_norm(x, (8,), W, f),
    "group_norm": lambda x, f: F.group_norm(x.view(2, 8, 2, 2), 4, W, B, f),
    "group_norm of rows": lambda x, f: F.group_norm(x.view(8, 8), 2, eps=f),
    "dropout": lambda x, f: F.dropout(x, f, False) + 1,
    "attention": lambda x, f: F.scaled_dot_product_attention(x, x, x, scale=f),
    "masked attention": lambda x, f: F.scaled_dot_product_attention(x, x, x, MASK, scale=f),
    "add": lambda x, f: torch.add(x, x.sin(), alpha=f) + x.add(2, alpha=f),
    "sub": lambda x, f: torch.sub(x, x.sin(), alpha=f),
    "lerp": lambda x, f: torch.lerp(x, x.sin(), f) + x.lerp(x.cos(), f),
    "causal attention": lambda x, f: F.scaled_dot_product_attention(x, x, x, is_causal=True, scale=f),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_two_compiles_serve_all_values(name, dtype, monkeypatch):
    for weight in ("W", "B"):
        monkeypatch.setitem(globals(), weight, globals()[weight].to(dtype))
    function, x = FUNCTIONS[name], torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    fast, said = compiled(function)
    for value in (0.5, 0.25, 1e-5, 0.75, 1.0, 0.125, 0.0, 0.3):
        got, want = fast(x, value), function(x, value)
        torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)
        assert got.stride() == want.stride()
    assert len(said.graphs) <= 2 and not said.breaks and not said.skips


def test_what_does_not_fit_is_called_as_it_is():
    def low(x, f):
        return F.layer_norm(x.half(), (8,), eps=f)

    def dropped(x, f):
        torch.manual_seed(0)
        return F.dropout(x, f, True)

    x = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    for function in (low, dropped):
        fast, _ = compiled(function)
        for value in (0.5, 0.25, 0.125):
            torch.testing.assert_close(fast(x, value), function(x, value), rtol=0, atol=0)


REFUSED = {
    "layer_norm of another shape": lambda x, f: F.layer_norm(x, (5,), eps=f),
    "layer_norm of no dimension": lambda x, f: F.layer_norm(x, (), eps=f),
    "layer_norm with a weight that would broadcast": lambda x, f: F.layer_norm(x, (8,), W[:1], None, f),
    "layer_norm with a bias that would broadcast": lambda x, f: F.layer_norm(x, (8,), None, B[:1], f),
    "rms_norm of another shape": lambda x, f: F.rms_norm(x, (5,), eps=f),
    "rms_norm with a weight that would broadcast": lambda x, f: F.rms_norm(x, (8,), W[:1], f),
    "group_norm of groups that do not fit": lambda x, f: F.group_norm(x.view(1, 4, 16), 3, eps=f),
    "group_norm with a weight that would broadcast": lambda x, f: F.group_norm(x, 2, W[:1], None, f),
    "group_norm with a bias that would broadcast": lambda x, f: F.group_norm(x, 2, None, B[:1], f),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused_at_every_value(name):
    function, x = REFUSED[name], torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))
    fast, _ = compiled(function)
    for value in (0.5, 0.25, 0.125):
        with pytest.raises(RuntimeError) as wanted:
            function(x, value)
        with pytest.raises(RuntimeError) as got:
            fast(x, value)
        assert str(got.value) == str(wanted.value)


def test_a_probability_out_of_range_raises():
    def function(x, p):
        return F.dropout(x, p, False)

    fast, _ = compiled(function)
    for p in (0.5, 0.25, 0.75):
        assert torch.equal(fast(torch.ones(2), p), torch.ones(2))
    for p in (1.5, -0.5):
        with pytest.raises(ValueError, match="between 0 and 1"):
            fast(torch.ones(2), p)
