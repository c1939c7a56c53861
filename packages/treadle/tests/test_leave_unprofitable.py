"""The option leave_unprofitable: small broken functions run in Python, and the statistics say so."""

from __future__ import annotations

import torch

import treadle


def f(x):
    x = x + 1
    if x.sum() > 0:
        x = x * 2
    return x - 1


def skipped(leave: bool, fn=f):
    compiled = treadle.compile(fn, options={"leave_unprofitable": leave})
    x = torch.ones(300)  # more than what decisions are made on while tracing
    for _ in range(4):
        assert torch.equal(compiled(x), fn(x))
    return treadle.stats().skipped


def test_the_statistics_tell():
    (text,) = skipped(True)
    assert text.startswith("f (") and "too small to gain anything" in text
    assert treadle.stats().graphs == 2


def test_the_option_off():
    assert skipped(False) == ()


def test_methods_and_modules():
    class M(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            x = self.linear(x)
            if x.sum() > 100:
                x = x * 2
            return self.linear(x)

    module = M()
    compiled = treadle.compile(module, options={"leave_unprofitable": True})
    for _ in range(4):
        x = torch.randn(2, 4)
        torch.testing.assert_close(compiled(x), module(x))
        compiled(x).sum().backward()
    assert any("too small" in text for text in treadle.stats().skipped)


def test_a_graph_that_runs_in_eager_is_left(monkeypatch):
    from treadle import through_aot

    def refuse(*args, **kwargs):
        raise through_aot.treadle_autograd.InternalError("functionalise", "no")

    def chain(x):
        for _ in range(10):
            x = torch.sin(x)
        return x

    monkeypatch.setattr(through_aot, "aot", refuse)
    with treadle.config.patch(raise_internal_errors=False):
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (text,) = skipped(True, chain)
    assert "too small" in text
