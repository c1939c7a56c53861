"""Operators that draw from the state of a generator: the numbers and the state behind them are those of the generator itself."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from treadle_shapes.torch import (  # noqa: E402
    drawing,
    fake_mode,
    fills_first_argument,
    restore_default_state,
    seed_default,
    seeded_state,
    why_not_draw,
)

aten = torch.ops.aten
CPU = torch.device("cpu")
CASES: list[tuple[Any, tuple[Any, ...]]] = [
    (aten.rand.generator, ([3, 100],)),
    (aten.randn.generator, ([31],)),
    (aten.randint.low_generator, (0, 5, [10])),
    (aten.randperm.generator, (10,)),
    (aten.rand_like.generator, (torch.zeros(3, 4).t(),)),
    (aten.bernoulli.default, (torch.linspace(0, 1, 50),)),
    (aten.multinomial.default, (torch.ones(5), 2)),
    (aten.normal.Tensor_float, (torch.zeros(40), 2.0)),
    (aten.poisson.default, (torch.full((9,), 3.0),)),
    (aten.normal_.default, (torch.zeros(5, 7).t(),)),
    (aten.uniform_.default, (torch.zeros(60)[::2], -1.0, 1.0)),
    (getattr(aten.random_, "from"), (torch.zeros(3, 3), 2, 9)),
    (aten.bernoulli_.float, (torch.zeros(8, 8)[::2, 1::3], 0.3)),
]
IDS = [str(op) for op, _ in CASES]


@pytest.mark.parametrize(("op", "args"), CASES, ids=IDS)
def test_draws_what_the_generator_draws(op, args):
    generator = torch.Generator().manual_seed(3)
    state = generator.get_state()
    before = [arg.clone() for arg in args if isinstance(arg, torch.Tensor)]
    result, behind = drawing(op)(state, *args)
    assert all(torch.equal(a, b) for a, b in zip(before, filter(torch.is_tensor, args), strict=True))
    expected = op(*args, generator=generator)
    assert torch.equal(result, expected) and torch.equal(behind, generator.get_state())
    assert result.stride() == expected.stride() or fills_first_argument(op)
    assert torch.equal(state, torch.Generator().manual_seed(3).get_state())


@pytest.mark.parametrize(("op", "args"), CASES, ids=IDS)
def test_fake_results_are_like_the_real_ones(op, args):
    state = seeded_state()(3, CPU)
    real = drawing(op)(state, *args)
    mode = fake_mode()
    with mode:
        given = [mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
        fake = drawing(op)(mode.from_tensor(state), *given)
    for a, b in zip(fake, real, strict=True):
        assert (a.shape, a.stride(), a.dtype, a.device) == (b.shape, b.stride(), b.dtype, b.device)


@pytest.mark.parametrize("op", [aten.add.Tensor, aten.rand.default, aten.normal.out, aten.native_dropout.default])
def test_what_has_no_such_function(op):
    assert why_not_draw(op) is not None


def test_states_of_seeds():
    for seed in (0, 5, -7, 2**63 - 1):
        assert torch.equal(seeded_state()(seed, CPU), torch.Generator().manual_seed(seed).get_state())


def test_the_default_generator_is_set():
    before = torch.get_rng_state()
    try:
        seed_default()(9)
        assert torch.equal(torch.get_rng_state(), torch.Generator().manual_seed(9).get_state())
        restore_default_state()(seeded_state()(4, CPU))
        assert torch.equal(torch.get_rng_state(), torch.Generator().manual_seed(4).get_state())
    finally:
        torch.set_rng_state(before)
