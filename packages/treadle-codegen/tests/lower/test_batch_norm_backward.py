"""The gradients of a batch norm against ATen's."""

from __future__ import annotations

import pytest
import torch

import treadle_codegen
from treadle_codegen.lower.batch_norm_backward import batch_norm_backward

aten = torch.ops.aten
SHAPES = [(4, 3), (2, 3, 5), (2, 3, 4, 5), (2, 1, 3, 2, 2)]


def arguments(shape: tuple[int, ...], dtype: torch.dtype, affine: bool, training: bool) -> tuple[object, ...]:
    x = torch.randn(shape, dtype=dtype)
    numbers = [torch.rand(shape[1], dtype=dtype) + 0.5 for _ in range(4)]
    weight, bias, mean, var = numbers if affine else (None, None, *numbers[2:])
    out, saved_mean, saved_invstd = aten.native_batch_norm(x, weight, bias, mean, var, training, 0.1, 1e-3)
    return torch.randn_like(out), x, weight, mean, var, saved_mean, saved_invstd, training, 1e-3


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gradients(shape: tuple[int, ...], training: bool, affine: bool, dtype: torch.dtype) -> None:
    given = arguments(shape, dtype, affine, training)
    for wanted in ([True, True, True], [True, affine, False], [True, False, False]):
        mine, theirs = batch_norm_backward(*given, wanted), aten.native_batch_norm_backward(*given, wanted)
        for a, b, is_wanted in zip(mine, theirs, wanted, strict=True):
            assert (a is None) == (not is_wanted)
            if a is not None and (b is not None and b.numel()):
                torch.testing.assert_close(a, b, **({"atol": 0.1, "rtol": 0.05} if dtype is torch.bfloat16 else {}))


def test_the_gradient_of_x_has_its_layout() -> None:
    given = [t for t in arguments((2, 3, 4, 5), torch.float32, True, True)]
    given[:2] = [t.to(memory_format=torch.channels_last) for t in given[:2]]  # type: ignore[attr-defined]
    assert batch_norm_backward(*given, [True] * 3)[0].stride() == given[1].stride()  # type: ignore[attr-defined]


def test_an_empty_batch_is_left_to_aten() -> None:
    x, ones = torch.ones(0, 3, 2), torch.ones(3)
    assert batch_norm_backward(x, x, ones, ones, ones, ones, ones, True, 1e-5, [True] * 3) is NotImplemented


def test_the_table_has_this_rule() -> None:
    rule = treadle_codegen.decompositions()[aten.native_batch_norm_backward.default]
    assert rule is batch_norm_backward
