"""PyTorch's own operator samples, as (function of tensors, tensors) pairs; for tests of every lowering against eager."""

from __future__ import annotations

import itertools
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

if "expecttest" not in sys.modules:  # torch.testing imports it for helpers that are not used here
    try:
        import expecttest  # noqa: F401
    except ModuleNotFoundError:
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo import core

# Every list of samples searches the stack three times for a method of unittest, by whose name it would draw them: 10 ms each.
common_utils.extract_test_fn = core.extract_test_fn = lambda: None

OPERATORS: dict[str, list[Any]] = {}
for _op in op_db:
    OPERATORS.setdefault(_op.name, []).append(_op)

Sample = tuple[Callable[..., Any], list[torch.Tensor]]


def samples(name: str, dtype: torch.dtype, count: int, device: str = "cpu") -> Iterator[Sample]:
    """Up to `count` samples of each variant of an operator; none where it does not take the dtype on that type of device."""
    for op in OPERATORS[name]:
        if dtype in op.supported_dtypes(torch.device(device).type):
            for sample in itertools.islice(op.sample_inputs(device, dtype, requires_grad=False), count):
                yield _as_function(op, sample)


def _as_function(op: Any, sample: Any) -> Sample:
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    positions = [k for k, x in enumerate(leaves) if isinstance(x, torch.Tensor)]

    def function(*tensors: torch.Tensor) -> Any:
        filled = list(leaves)
        for k, tensor in zip(positions, tensors, strict=True):
            filled[k] = tensor
        first, args, kwargs = tree_unflatten(filled, spec)
        return op(first, *args, **kwargs)

    return function, [leaves[k] for k in positions]
