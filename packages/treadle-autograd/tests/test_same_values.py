"""Nodes of two joint graphs that have the same values."""

from __future__ import annotations

import torch
from joint_graphs import joint_of, leaf

from treadle_autograd.same_values import same_values


def names(first: object, second: object) -> dict[str, str]:
    return {mine.name: other.name for mine, other in same_values(first, second).items()}  # type: ignore[arg-type]


def test_the_same_program_has_the_same_values() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ w).sum()

    first, second = (joint_of(program, leaf(3, 4), leaf(4, 5)) for _ in range(2))
    found = names(first, second)
    assert {"mm_default", "tanh_default"} <= found.keys()
    assert all(mine == other for mine, other in found.items())


def test_other_arguments_are_other_values() -> None:
    x, w = leaf(3, 4), leaf(4, 5)
    first = joint_of(lambda x, w: ((x @ w) * 2.0).sum(), x, w)
    second = joint_of(lambda x, w: ((x @ w) * 3.0).sum(), x, w)
    found = names(first, second)
    assert "mm_default" in found and "mul_tensor" not in found and "sum_default" not in found


def test_zeros_of_both_signs_are_told_apart() -> None:
    x = leaf(3)
    first = joint_of(lambda x: (x.sin() + 0.0).cos().sum(), x)
    second = joint_of(lambda x: (x.sin() + -0.0).cos().sum(), x)
    found = names(first, second)
    assert "sin_default" in found and "cos_default" not in found


def test_random_numbers_are_others() -> None:
    x = leaf(3)
    first, second = (joint_of(lambda x: (x.sin() * torch.rand_like(x)).sum(), x) for _ in range(2))
    found = names(first, second)
    assert "sin_default" in found and "mul_tensor" not in found


def test_tangents_are_no_inputs() -> None:
    first, second = (joint_of(lambda x: x.sin(), leaf(3)) for _ in range(2))
    assert not any("tangent" in name for name in names(first, second))
