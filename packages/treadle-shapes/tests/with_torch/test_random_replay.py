"""Operators that draw again: the numbers are those of the first draw, and the default generator does not notice."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from treadle_shapes.torch import (  # noqa: E402
    GENERATOR_STATE_BYTES,
    fake_mode,
    generator_state,
    operator,
    replay_of,
    why_not_replay,
)

aten = torch.ops.aten
CPU = torch.device("cpu")
CASES: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten.bernoulli.p, (torch.empty(40, 3), 0.3), {}),
    (aten.bernoulli.default, (torch.linspace(0, 1, 50),), {}),
    (aten.rand.default, ([4, 5],), {}),
    (aten.randn.default, ([4, 5],), {"dtype": torch.float64}),
    (aten.rand_like.default, (torch.empty(3, 4),), {}),
    (aten.native_dropout.default, (torch.ones(40, 3), 0.5, True), {}),  # takes no generator
    (aten.multinomial.default, (torch.ones(5), 3), {}),
    (aten.randperm.default, (9,), {}),
    (aten.normal.Tensor_float, (torch.zeros(4),), {}),
    (aten.randint.low, (3, 9, [4]), {}),
    (aten.exponential.default, (torch.zeros(30),), {}),
    # Only negative elements draw numbers.
    (aten.rrelu_with_noise_functional.default, (torch.linspace(-1, 1, 5), torch.zeros(5)), {"training": True}),
]


@pytest.mark.parametrize(("op", "args", "kwargs"), CASES, ids=[str(op) for op, _, _ in CASES])
def test_the_same_numbers_again(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    torch.randn(3)  # an odd number of them leaves one over in the generator
    state = generator_state()(CPU)
    first, after = op(*args, **kwargs), torch.get_rng_state()
    torch.rand(7)
    before = torch.get_rng_state()
    again = replay_of(op)(state, *args, **kwargs)
    assert torch.equal(torch.get_rng_state(), before) and not torch.equal(after, state)
    pairs = zip(first, again, strict=True) if isinstance(first, tuple) else [(first, again)]
    assert all(torch.equal(one, other) for one, other in pairs)


def test_facts_and_fakes() -> None:
    replay, state = replay_of(aten.bernoulli.p), generator_state()
    assert replay is replay_of(aten.bernoulli.p) and str(replay) == "treadle.replay_bernoulli.p"
    record, of_state = operator(replay), operator(state)
    assert record is not None and record.is_pure and not record.is_random
    assert of_state is not None and of_state.is_random and of_state.is_pure
    with fake_mode():
        made = state(CPU)
        assert made.shape == (GENERATOR_STATE_BYTES["cpu"],) and made.dtype is torch.uint8
        assert replay(made, torch.empty(3, 4), 0.5).shape == (3, 4)
    assert generator_state()(CPU).numel() == GENERATOR_STATE_BYTES["cpu"]


@pytest.mark.parametrize("op", [aten.add.Tensor, aten.bernoulli_.float, aten.uniform_.default], ids=str)
def test_what_is_not_replayed(op: Any) -> None:
    assert why_not_replay(op) is not None


def test_an_exception_leaves_the_default_generator_alone() -> None:
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError):
        replay_of(aten.native_dropout.default)(generator_state()(CPU), torch.ones(3), 2.0, True)
    assert torch.equal(torch.get_rng_state(), before)
