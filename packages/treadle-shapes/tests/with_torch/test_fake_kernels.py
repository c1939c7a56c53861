"""Implementations on fake tensors with eager's strides."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from treadle_shapes import ShapeEnv  # noqa: E402
from treadle_shapes.torch import expr_of, fake_kernels, fake_like, fake_mode, fake_shape_env, fake_tensor  # noqa: E402
from treadle_shapes.torch.fake_kernels import max_unpool2d, roll  # noqa: E402

LAYOUTS = {
    "contiguous": lambda: torch.arange(120.0).view(2, 3, 4, 5),
    "channels-last": lambda: torch.arange(120.0).view(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "permuted": lambda: torch.arange(120.0).view(5, 4, 3, 2).permute(3, 2, 1, 0),
    "empty": lambda: torch.empty(2, 0, 3),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("shifts", "dims"), [((1,), (0,)), ((-2, 5), (1, 2)), ((7,), (-1,)), ((3,), ())])
def test_roll(layout, shifts, dims):
    x = LAYOUTS[layout]()
    found, wanted = roll(x, shifts, dims), torch.roll(x, shifts, dims)
    assert torch.equal(found, wanted) and found.stride() == wanted.stride()


@pytest.mark.parametrize("layout", ["contiguous", "channels-last", "permuted"])
def test_max_unpool2d(layout):
    x = LAYOUTS[layout]()
    pooled, indices = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
    wanted = torch.ops.aten.max_unpool2d(pooled, indices, x.shape[2:])
    with torch._subclasses.FakeTensorMode() as mode:
        found = max_unpool2d(mode.from_tensor(pooled), mode.from_tensor(indices), x.shape[2:])
    assert found.shape == wanted.shape and found.stride() == wanted.stride()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["log_sigmoid_forward", "angle"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_results_in_another_layout_than_the_tensor(name, dtype, layout):
    x = LAYOUTS[layout]().to(torch.float64 if name == "log_sigmoid_forward" else dtype)
    wanted = getattr(torch.ops.aten, name)(x)
    with torch._subclasses.FakeTensorMode() as mode:
        found = getattr(fake_kernels, name)(mode.from_tensor(x))
    first = [results if isinstance(results, torch.Tensor) else results[0] for results in (found, wanted)]
    assert first[0].stride() == first[1].stride() and first[0].dtype == first[1].dtype


REPLACED = {
    "angle": lambda x: torch.angle(torch.complex(x, x)),
    "log_sigmoid": torch.nn.functional.logsigmoid,
    "index_fill": lambda x: x[:, ::2].index_fill(-1, torch.tensor([0]), 1.0),
    "roll": lambda x: torch.roll(x, 1, 1),
}


@pytest.mark.parametrize("layout", ["channels-last", "permuted"])
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", REPLACED)
def test_the_mode_answers_in_their_layout(name, symbolic, layout):
    """Tracers, too, tell a program the strides of a result and whether it is contiguous."""
    x = LAYOUTS[layout]()
    wanted = REPLACED[name](x)
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    sizes = [env.create_symbol(n, f"n{i}") for i, n in enumerate(x.shape)] if symbolic else None
    given = fake_like(mode, x) if sizes is None else fake_tensor(mode, x, sizes)
    with mode:
        for _ in range(2):
            found = REPLACED[name](given)
            assert [env.hint(expr_of(n)) for n in found.stride()] == list(wanted.stride())
