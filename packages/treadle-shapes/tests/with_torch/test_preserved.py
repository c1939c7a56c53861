"""Operators that stay whole while a graph is traced: which they are, their sizes, and nesting of the context."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

from treadle_shapes import ShapeEnv  # noqa: E402
from treadle_shapes.torch import (  # noqa: E402
    fake_mode,
    fake_shape_env,
    fake_tensor,
    operator,
    preserved,
    preserved_operators,
    raw_expr,
    symbolic_dispatch,
)


def python_kernels():
    return {op: dict(op.py_kernels) for op in preserved.kernels()}


def test_an_exception_restores_the_kernels():
    before = python_kernels()
    with pytest.raises(ValueError, match="inside"):
        with preserved_operators():
            raise ValueError("inside")
    assert python_kernels() == before


def test_preserved_operators_of_several_threads():
    before, inside, leave = python_kernels(), threading.Event(), threading.Event()

    def trace():
        with preserved_operators():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=trace)
    with preserved_operators():
        thread.start()
        inside.wait()
    assert python_kernels() != before  # the other still traces
    leave.set()
    thread.join()
    assert python_kernels() == before


@pytest.mark.parametrize("op", preserved.kernels(), ids=str)
def test_preserved_operators_have_the_overloads_that_are_listed(op):
    assert operator(op).preserved or op is torch.ops.aten.dropout.default


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
@pytest.mark.parametrize("how", [{"scale_factor": 2.0}, {"scale_factor": 1.5}, {"size": (7, 9)}])
def test_the_sizes_of_preserved_interpolations(mode, how):
    env = ShapeEnv()
    fakes = fake_mode(shape_env=fake_shape_env(env))
    real = torch.randn(2, 3, 6, 8)
    x = fake_tensor(fakes, real, [None, None, env.create_symbol(6, "h"), env.create_symbol(8, "w")])
    with fakes, symbolic_dispatch(), preserved_operators():
        fake = torch.nn.functional.interpolate(x, mode=mode, **how)
    wanted = torch.nn.functional.interpolate(real, mode=mode, **how)
    assert [env.hint(raw_expr(n)) for n in fake.shape] == list(wanted.shape)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_dropout_draws_what_eager_draws(p):
    x, states = torch.tensor([1.0, -1.0, float("nan")]), []
    for context in (preserved_operators(), None):
        torch.manual_seed(0)
        if context is None:
            result = torch.dropout(x, p, True)
        else:
            with symbolic_dispatch(), context:
                result = torch.dropout(x, p, True)
        states.append((str(result), torch.rand(1)))
    assert states[0] == states[1]
