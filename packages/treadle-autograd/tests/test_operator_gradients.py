"""PyTorch's own operator samples, forward and backward through the joint graph and its partition, against eager's autograd."""

from __future__ import annotations

import itertools
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from gradient_oracle import check, gradients, leaves
from torch.utils import _pytree as pytree

if "expecttest" not in sys.modules:  # torch.testing imports it for helpers that are not used here
    try:
        import expecttest  # noqa: F401
    except ModuleNotFoundError:
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    common: Any = pytest.importorskip("torch.testing._internal.common_methods_invocations")

from torch.testing._internal import common_utils  # noqa: E402
from torch.testing._internal.opinfo import core  # noqa: E402

# Every list of samples searches the stack three times for a method of unittest, by whose name it would draw them: 10 ms each.
common_utils.extract_test_fn = core.extract_test_fn = lambda: None
# The samples of random operators seed the generator inside; a graph has no such call.
common.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)

# Operators whose graphs run in eager, with the reason that `why_eager` gives.
EAGER = {
    "as_strided": "absolute place",
    "as_strided_scatter": "absolute place",
    "combinations": "values of a tensor",
    "corrcoef": "values of a tensor",
    "cov": "values of a tensor",
    "index_fill": "values of a tensor",
    "index_put": "values of a tensor",
    "linalg.eig": "complex eigenvectors",
    "linalg.lstsq": "values of a tensor",
    "masked_select": "values of a tensor",
    "narrow": "values of a tensor",
    "nn.functional.ctc_loss": "values of a tensor",
    "nn.functional.gaussian_nll_loss": "values of a tensor",
    "tensor_split": "",
    "to_sparse": "layout",
    "unsafe_chunk": "",
    "unsafe_split": "",
}
SAMPLES = 2
CHUNKS = 8


def operators(chunk: int) -> list[Any]:
    known = [op for op in common.op_db if op.supports_autograd and torch.float32 in op.dtypes]
    return sorted(known, key=lambda op: (op.name, op.variant_test_name))[chunk::CHUNKS]


def samples(op: Any) -> Iterator[tuple[Callable[..., Any], list[torch.Tensor]]]:
    """Calls as functions of their tensors, and those tensors."""
    for sample in itertools.islice(op.sample_inputs("cpu", torch.float32, requires_grad=False), SAMPLES):
        flat, spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        tensors = [value for value in flat if isinstance(value, torch.Tensor)]
        if all(t.layout is torch.strided and not t.is_nested for t in tensors):

            def call(*given: torch.Tensor, flat: Any = flat, spec: Any = spec) -> list[Any]:
                remaining = iter(given)
                values = [next(remaining) if isinstance(value, torch.Tensor) else value for value in flat]
                args, kwargs = pytree.tree_unflatten(values, spec)
                return pytree.tree_leaves(op(*args, **kwargs))

            yield call, tensors


def is_refused_by_eager(call: Callable[..., Any], tensors: list[torch.Tensor]) -> bool:
    try:
        gradients(call, leaves(tensors, [x.is_floating_point() for x in tensors]))
    except Exception:
        return True
    return False


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.filterwarnings("ignore")
def test_operator_gradients(chunk: int) -> None:
    failures = []
    for op in operators(chunk):
        for call, tensors in samples(op):
            if is_refused_by_eager(call, tensors):
                continue
            try:
                compiled = check(call, tensors, rtol=2e-4, atol=2e-4)
            except Exception as error:
                failures.append(f"{op.name}: {type(error).__name__}: {str(error)[:300]}")
                continue
            reason = compiled.why_eager
            if reason is not None and EAGER.get(op.name, "no reason listed") not in reason:
                failures.append(f"{op.name} runs in eager: {reason[:200]}")
    assert not failures, "\n".join(failures)
