"""PyTorch's operator samples through the compiled path, against eager on the same device."""

from __future__ import annotations

import os
import warnings
from typing import Any

import operator_samples
import pytest
import torch
from torch.utils._pytree import tree_leaves

import treadle

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
SAMPLES = int(os.environ.get("TREADLE_SAMPLES", "2"))
# Uninitialised memory has no right value, and the samples of these set no seed.
NO_VALUE = frozenset(
    """
    empty empty_like empty_strided empty_permuted new_empty new_empty_strided bernoulli cauchy exponential geometric log_normal
    multinomial normal rand_like randint randint_like randn randn_like uniform nn.functional.rrelu
    nn.functional.scaled_dot_product_attention nn.functional.multi_head_attention_forward pca_lowrank svd_lowrank
    torch.ops.aten._efficient_attention_forward torch.ops.aten._flash_attention_forward
    """.split()
)
# Results that are right up to a sign or a rotation.
AMBIGUOUS = ("eig", "svd", "qr", "lobpcg", "ormqr", "householder")
TOLERANCE = {torch.float32: (1e-4, 1e-4), torch.complex64: (1e-4, 1e-4), torch.bfloat16: (3e-2, 3e-2)}


def has_right_value(name: str) -> bool:
    is_random = name in NO_VALUE or "dropout" in name
    return not is_random and not any(text in name for text in AMBIGUOUS)


NAMES = [name for name in operator_samples.OPERATORS if has_right_value(name) and not name.startswith("jiterator")]


@pytest.mark.parametrize("name", NAMES)
def test_samples(name: str, device: torch.device) -> None:
    failures = []
    for dtype in DTYPES:
        for k, (function, tensors) in enumerate(operator_samples.samples(name, dtype, SAMPLES, str(device))):
            try:
                compare(function, tensors, TOLERANCE.get(dtype, (None, None)))
            except Exception as error:  # collected, so that one run names every dtype that fails
                failures.append(f"{dtype}, sample {k}: {type(error).__name__}: {str(error)[:600]}")
    assert not failures, "\n".join(failures)


def compare(function: Any, tensors: list[torch.Tensor], tolerance: tuple[float | None, float | None]) -> None:
    """Values, dtypes, devices and strides of all results, and what became of the arguments."""
    treadle.reset()
    theirs, mine = [x.detach().clone() for x in tensors], [x.detach().clone() for x in tensors]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = tree_leaves(function(*theirs))
        except (RuntimeError, ValueError, IndexError, TypeError):  # a sample of an error, or no kernel for the dtype
            return
        actual = tree_leaves(treadle.compile(function)(*mine))
    rtol, atol = tolerance
    for one, other in zip(actual, expected, strict=True):
        if not isinstance(other, torch.Tensor):
            assert one == other or (one != one and other != other)
        elif other.layout is torch.strided:
            assert one.device == other.device
            torch.testing.assert_close(one, other, rtol=rtol, atol=atol, equal_nan=True)
            assert other.numel() == 0 or strides(one) == strides(other)
    for one, other in zip(mine, theirs, strict=True):
        if other.layout is torch.strided:
            torch.testing.assert_close(one, other, rtol=rtol, atol=atol, equal_nan=True)


def strides(tensor: torch.Tensor) -> list[int]:
    """Strides of the dimensions with more than one element."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]
