"""The fast fake kernels give eager's layouts without a guard, and leave other modes alone."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from treadle_shapes import ShapeEnv, evaluate  # noqa: E402
from treadle_shapes.torch import expr_of, fake_mode, fake_shape_env, fake_tensor, fast_kernels  # noqa: E402

aten = torch.ops.aten


def test_every_kernel_is_of_an_overload_that_pytorch_takes_the_slow_path_for():
    kernels = fast_kernels.kernels()
    assert {aten.unsqueeze.default, aten.permute.default, aten.view.default, aten.native_layer_norm.default} <= set(
        kernels
    )
    assert all(callable(fast_kernels._slow_path(op)) for op in kernels)


def test_a_view_without_an_answer_takes_the_slow_path():
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    b = env.create_symbol(4, "b")
    x = fake_tensor(mode, torch.rand(4, 6), (b, None))
    with mode:
        y = x.t().reshape(-1)  # no view: the memory is transposed
        with pytest.raises((RuntimeError, ValueError)):
            x.view(5, 5)
    assert expr_of(y.shape[0]) is b * 6


@pytest.mark.parametrize("shape", [(8,), (6, 8)])
def test_layer_norm(shape):
    real = torch.rand(4, 6, 8)
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    b = env.create_symbol(4, "b")
    fake = fake_tensor(mode, real, (b, None, None))
    weight = torch.rand(shape)
    want = torch.native_layer_norm(real, shape, weight, None, 1e-5)
    with mode:
        got = torch.native_layer_norm(fake, shape, fake_tensor(mode, weight, (None,) * len(shape)), None, 1e-5)
    for g, w in zip(got, want, strict=True):
        assert [evaluate(expr_of(n), {b: 4}) for n in g.shape] == list(w.shape)
        assert g.dtype == w.dtype
        assert [evaluate(expr_of(n), {b: 4}) for n in g.stride()] == list(w.stride())
    assert not env.guards


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize("base", [2, 2.5])
def test_powers_of_numbers_are_row_major(base, dtype):
    x, env = torch.ones(6, 8, dtype=dtype).t(), ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    n = env.create_symbol(8, "n")
    fake = fake_tensor(mode, x, (n, None))
    with mode:
        got = torch.pow(base, fake)
    want = torch.pow(base, x)
    assert (got.dtype, [evaluate(expr_of(k), {n: 8}) for k in got.stride()]) == (want.dtype, [*want.stride()])


def test_pytorchs_own_environment_keeps_its_way():
    pytest.importorskip("torch.fx.experimental.symbolic_shapes")
    from torch.fx.experimental.symbolic_shapes import ShapeEnv as Theirs

    fake_mode(shape_env=fake_shape_env(ShapeEnv()))
    mode = FakeTensorMode(shape_env=Theirs())
    x = mode.from_tensor(torch.rand(4, 6, 8))
    with mode:
        y = x.unsqueeze(0).transpose(1, 2).expand(3, -1, -1, -1)
        z = torch.nn.functional.layer_norm(x.view(-1, 8), (8,))
    assert (y.dim(), z.dim()) == (4, 2)
