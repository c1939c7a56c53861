"""The fused steps of optimizers as elementwise operations, against PyTorch's kernels."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from treadle_shapes.torch import fake_mode, operator  # noqa: E402

RATES = {"lr": 0.1, "weight_decay": 0.05, "maximize": False}
ADAM = {**RATES, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "amsgrad": False}
SGD = {**RATES, "momentum": 0.9, "dampening": 0.1, "nesterov": False, "is_first_step": False}
CALLS: list[tuple[str, int, int, dict[str, Any]]] = [  # name, lists of state, lists of steps, options
    ("_fused_adam_", 2, 1, ADAM),
    ("_fused_adam_", 3, 1, {**ADAM, "amsgrad": True, "maximize": True, "weight_decay": 0.0}),
    ("_fused_adamw_", 2, 1, ADAM),
    ("_fused_adamw_", 2, 1, {**ADAM, "lr": torch.tensor(0.1)}),
    ("_fused_sgd_", 1, 0, SGD),
    ("_fused_sgd_", 0, 0, {**SGD, "momentum": 0.0, "maximize": True}),
    ("_fused_sgd_", 1, 0, {**SGD, "nesterov": True, "dampening": 0.0, "is_first_step": True}),
    ("_fused_adagrad_", 1, 1, {**RATES, "lr_decay": 0.1, "eps": 1e-10}),
]


def arguments(name: str, n_states: int, n_steps: int, dtype: torch.dtype, seed: int) -> list[Any]:
    """Parameters, gradients, lists of state, and steps, of two tensors each."""
    torch.manual_seed(seed)
    lists: list[Any] = [[torch.randn(3, 5).to(dtype), torch.randn(7).to(dtype)] for _ in range(2)]
    lists += [[torch.rand(3, 5).to(dtype), torch.rand(7).to(dtype)] for _ in range(n_states)]
    if name.startswith("_fused_adam") and n_states == 2:
        lists.append([])
    if name == "_fused_sgd_" and n_states == 0:
        lists.append([])
    return lists + [[torch.tensor(4.0), torch.tensor(4.0)] for _ in range(n_steps)]


@pytest.mark.parametrize(("name", "n_states", "n_steps", "options"), CALLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("found", [None, 0.0, 1.0])
def test_steps_are_those_of_the_kernels(name, n_states, n_steps, options, dtype, found):
    scaler = {} if found is None else {"grad_scale": torch.tensor(4.0), "found_inf": torch.tensor(found)}
    function = operator(getattr(torch, name)).fake_function
    expected = arguments(name, n_states, n_steps, dtype, 0)
    mine = arguments(name, n_states, n_steps, dtype, 0)
    getattr(torch, name)(*expected, **options, **scaler)
    function(*mine, **options, **scaler)
    tolerance = {"rtol": 2e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(mine, expected, **tolerance)
    versions = [[tensor._version for group in groups for tensor in group] for groups in (mine, expected)]
    assert versions[0] == versions[1]


@pytest.mark.parametrize("value", [0.5, float("inf"), float("nan")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_check_of_scaled_gradients(value: float, dtype: torch.dtype):
    function = operator(torch._amp_foreach_non_finite_check_and_unscale_).fake_function
    given = [
        [torch.tensor([1.0, value], dtype=dtype), torch.ones(3, 3, dtype=dtype)],
        torch.zeros(1),
        torch.tensor(0.25),
    ]
    mine = copy.deepcopy(given)
    torch._amp_foreach_non_finite_check_and_unscale_(*given)
    function(*mine)
    torch.testing.assert_close(mine, given, equal_nan=True)


def test_fake_tensors_take_a_step():
    function = operator(torch._fused_sgd_).fake_function
    with fake_mode() as mode:
        tensors = [[mode.from_tensor(torch.randn(3))] for _ in range(2)]
        assert function(*tensors, [], **{**SGD, "momentum": 0.0}) is None
        with pytest.raises(RuntimeError, match="momentum_buffer_list"):
            function(*tensors, [], **SGD)


def test_the_functional_forms_keep_their_own_meaning():
    assert operator(torch.ops.aten._fused_adam.default).fake_function is None
