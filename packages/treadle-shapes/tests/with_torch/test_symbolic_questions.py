"""Powers of symbolic numbers: no decision, and the dtypes and shapes of the real ones, in every torch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


from treadle_shapes.env import ShapeEnv  # noqa: E402
from treadle_shapes.torch import fake_mode, fake_shape_env, sym_float, sym_int, symbolic_dispatch  # noqa: E402

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8)
HINTS = (0.5, 1.0, 2.0, 3.5, 1, 2, 3)


def symbolic(env, number):
    if isinstance(number, float):
        return sym_float(env, env.create_float(number, "p"))
    return sym_int(env, env.create_symbol(number, "n", dynamic="dynamic"))


@pytest.mark.parametrize("symbolic_sizes", [False, True])
@pytest.mark.parametrize("hint", HINTS, ids=repr)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("power", [lambda x, p: x**p, lambda x, p: p**x], ids=["exponent", "base"])
def test_a_power_is_not_asked_for_its_value(power, dtype, hint, symbolic_sizes):
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    size = sym_int(env, env.create_symbol(4, "s", dynamic="dynamic")) if symbolic_sizes else 4
    number = symbolic(env, hint)
    if isinstance(number, (int, float)):
        pytest.skip("a hint of 1 is a constant")
    with mode, symbolic_dispatch():
        fake = power(torch.empty(size, 3, dtype=dtype), number)
    real = power(torch.ones(4, 3, dtype=dtype), hint)
    assert (fake.dtype, fake.dim(), fake.shape[1]) == (real.dtype, 2, 3)
    assert env.guards == []


def test_a_plain_power_is_what_it_was():
    x = torch.tensor([0.25, 2.0, -1.0], dtype=torch.float64)
    for p in (0.5, 1.0, 2.0, 3.0, -1.5):
        torch.testing.assert_close(torch._refs.pow(x, p), x**p, equal_nan=True)
        torch.testing.assert_close(torch._refs.pow(p, x), p**x, equal_nan=True)
        torch.testing.assert_close(
            torch._decomp.decomposition_table[torch.ops.aten.pow.Tensor_Scalar](x, p), x**p, equal_nan=True
        )


def test_extents_of_pooling_are_rounded_down():
    for a in range(-7, 8):
        for b in (1, 2, 3, -2):
            assert torch._meta_registrations.div_rtn(a, b) == a // b


@pytest.mark.parametrize(("size", "found"), [(0, float("inf")), (12, 0.5)])
def test_a_decided_size_is_divided_by_floats(size, found):
    env = ShapeEnv()
    shape_env = fake_shape_env(env)
    count = torch.SymInt(shape_env.int_node(size))
    assert count / 2.0 == size / 2 and 6.0 / count == found
    assert not env.guards
