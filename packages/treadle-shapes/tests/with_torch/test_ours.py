"""Treadle's modes and numbers are told from those of others."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from treadle_shapes import Eq, ShapeEnv, UsageError  # noqa: E402
from treadle_shapes.torch import env_of, fake_like, fake_mode, raw_expr, sym_float, sym_int  # noqa: E402
from treadle_shapes.torch.ours import runs_in_our_mode  # noqa: E402


def foreign_number():
    from torch.fx.experimental.symbolic_shapes import ShapeEnv as Theirs

    return Theirs().create_unbacked_symint()


def test_modes():
    ours, theirs, real = fake_mode(), FakeTensorMode(), torch.ones(2)
    assert not runs_in_our_mode(real)
    with ours:
        assert runs_in_our_mode(real) and runs_in_our_mode(torch.ones(2))
    with theirs:
        assert not runs_in_our_mode(real) and not runs_in_our_mode(torch.ones(2))
    assert runs_in_our_mode(fake_like(ours, real)) and not runs_in_our_mode(theirs.from_tensor(real))
    with theirs:  # a tensor's own mode counts, not the active one
        assert runs_in_our_mode(fake_like(ours, real))


def test_numbers():
    env = ShapeEnv()
    n = sym_int(env, env.create_symbol(4, "n"))
    assert env_of(n) is env and env_of(n == 3) is env and env_of(sym_float(env, env.create_float(0.5, "f"))) is env
    assert env_of(4) is env_of(0.5) is env_of(torch.ones(2)) is env_of(foreign_number()) is None


def test_raw_expressions_keep_what_facts_replace():
    env = ShapeEnv()
    s = env.create_symbol(4, "n")
    n = sym_int(env, s)
    condition = n == 4
    env.decide(Eq(s, 4))
    assert raw_expr(n) is s and str(raw_expr(condition)) == "s0 == 4"
    assert raw_expr(7) == 7 and raw_expr(None) is None and raw_expr("x") == "x"
    with pytest.raises(UsageError, match="another symbolic shape engine"):
        raw_expr(foreign_number())
