"""Kernels that are given the general answer: no guard on sizes of 1, and eager's results there."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from treadle_shapes import Eq, ShapeEnv, evaluate  # noqa: E402
from treadle_shapes.torch import expr_of, fake_shape_env, fake_tensor, operator, symbolic_dispatch  # noqa: E402
from treadle_shapes.torch.size_oblivious import answer_size_obliviously, run_for_metadata  # noqa: E402

attention = torch.nn.functional.scaled_dot_product_attention


def traced(tensors, dims, **kwargs):
    """The fake result with all `dims` of each tensor dynamic, the environment, and symbols in order."""
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=fake_shape_env(env), static_shapes=False)
    fakes = []
    for i, (tensor, dynamic) in enumerate(zip(tensors, dims, strict=True)):
        sizes = [
            env.create_symbol(n, f"t{i}.size()[{d}]") if d in dynamic else None for d, n in enumerate(tensor.shape)
        ]
        fakes.append(fake_tensor(mode, tensor, sizes, f"t{i}"))
    with mode, symbolic_dispatch(), answer_size_obliviously(mode.shape_env, attention):
        return attention(*fakes, **kwargs), env


@pytest.mark.parametrize("mask_rows", [(0,), ()])
def test_attention_with_mask_asks_nothing_about_ones(mask_rows):
    q = torch.randn(3, 2, 5, 4)
    out, env = traced([q, q, q, torch.randn(3 if mask_rows else 1, 2, 5, 5)], [(0, 2)] * 3 + [(*mask_rows, 2, 3)])
    assert not [g for g in env.guards if g.expr.op != "eq0"]  # that sizes agree is a matter of its own
    for batch, length in itertools.product((1, 2, 4), (1, 3)):
        tensors = [torch.randn(batch, 2, length, 4) for _ in range(3)]
        real = attention(*tensors, torch.randn(batch if mask_rows else 1, 2, length, length))
        values = {s: batch if info.source.endswith("[0]") else length for s, info in env.symbols.items()}
        shape = [n if isinstance(n, int) else evaluate(expr_of(n), values) for n in out.shape]
        assert tuple(shape) == tuple(real.shape)


def test_only_what_is_listed_gets_the_general_answer():
    env = ShapeEnv()
    n = env.create_symbol(5, "n")
    with answer_size_obliviously(env, torch.add):
        assert not env.decide(Eq(n, 1))
    assert env.guards and operator(torch.add).size_one_question is None
    with answer_size_obliviously(None, attention), answer_size_obliviously(env, "add"):
        pass


def test_answers_of_kernels_are_guarded_and_layouts_are_not():
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=fake_shape_env(env), static_shapes=False)
    x = fake_tensor(mode, torch.randn(5, 3), [env.create_symbol(5, "n"), None], "x")
    with mode, symbolic_dispatch():
        out = run_for_metadata(mode.shape_env, torch.nn.functional.adaptive_avg_pool1d, (x[None], 1), {})
        assert out.shape[-1] == 1 and not env.guards
        assert run_for_metadata(env, lambda tensor: bool(tensor.shape[0] == 1), (x,), {}) is False
    assert [str(g.expr) for g in env.guards] == ["s0 != 1"]
    assert run_for_metadata(None, torch.is_same_size, (torch.ones(2), torch.ones(2)), {}) is True
