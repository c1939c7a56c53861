"""`treadle.compiler`: what programs ask and tell the compiler."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import treadle  # noqa: E402


def test_is_compiling():
    def program(x):
        return x + 1 if treadle.compiler.is_compiling() else x - 1

    x = torch.ones(2)
    assert not treadle.compiler.is_compiling() and program(x).tolist() == [0, 0]
    assert treadle.compile(program, fullgraph=True)(x).tolist() == [2, 2]


def test_a_stance_holds_for_compiled_functions():
    def program(x, n):
        return x * n

    fast = treadle.compile(program, dynamic=False)
    x = torch.ones(2)
    fast(x, 2)
    with treadle.compiler.set_stance("fail_on_recompile"):
        assert fast(x, 2).tolist() == [2, 2]
        with pytest.raises(RuntimeError, match="would be compiled again"):
            fast(x, 3)
    assert fast(x, 3).tolist() == [3, 3]


def test_an_exported_graph():
    gm = treadle.compiler.export(lambda x: {"y": x.sin() + 1})(torch.ones(2))
    assert torch.equal(gm(torch.zeros(2))["y"], torch.ones(2))
