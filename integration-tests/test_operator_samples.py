"""PyTorch's own operator samples through treadle's ahead-of-time half: values, strides, aliasing and in-place effects as in eager."""

from __future__ import annotations

import itertools
import operator
import sys
import warnings
from typing import Any

import pytest
import torch
from operator_infos import op_db
from torch import fx
from torch.utils import _pytree as pytree

from treadle_autograd import aot

# Uninitialised memory has no right value.
NO_VALUE = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
# Composites that return views without declaring them; called inside another function they are not seen (see why_not_functional).
UNDECLARED_VIEWS = {"unsafe_chunk", "unsafe_split"}

CHUNKS = 8


def clone_with_storage(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides and offset, in a copy of the whole storage."""
    storage = tensor.untyped_storage().clone()
    copy = torch.empty(0, dtype=tensor.dtype)
    return copy.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())  # type: ignore[arg-type]


def on_tensors(function: Any, flat: list[Any], spec: Any) -> Any:
    """`function` as a function of its tensor arguments alone, returning a flat list."""

    def call(*tensors: torch.Tensor) -> list[Any]:
        remaining = iter(tensors)
        values = [next(remaining) if isinstance(value, torch.Tensor) else value for value in flat]
        args, kwargs = pytree.tree_unflatten(values, spec)
        return pytree.tree_leaves(function(*args, **kwargs))

    return call


def as_graph(call: Any, n_inputs: int, n_outputs: int) -> fx.GraphModule:
    """A graph of one call."""
    graph = fx.Graph()
    node = graph.call_function(call, tuple(graph.placeholder(f"x{i}") for i in range(n_inputs)))
    graph.output(tuple(graph.call_function(operator.getitem, (node, i)) for i in range(n_outputs)))
    return fx.GraphModule(torch.nn.Module(), graph)


def shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def check(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], has_value: bool) -> None:
    flat, spec = pytree.tree_flatten((args, kwargs))
    tensors = [value.detach() for value in flat if isinstance(value, torch.Tensor)]
    if any(t.layout is not torch.strided for t in tensors):
        return
    theirs, mine = [clone_with_storage(t) for t in tensors], [clone_with_storage(t) for t in tensors]
    call = on_tensors(function, flat, spec)
    torch.manual_seed(0)
    try:
        expected = call(*theirs)
    except (RuntimeError, ValueError, IndexError, TypeError):  # a sample of an error
        return
    if any(isinstance(value, torch.Tensor) and value.layout is not torch.strided for value in expected):
        return
    if not all(isinstance(value, (torch.Tensor, bool, int, float, type(None))) for value in expected):
        return
    compiled = aot(as_graph(call, len(tensors), len(expected)), mine, forward=lambda gm, inputs: gm.forward)
    torch.manual_seed(0)
    actual = compiled(*mine)
    for e, a in zip(expected, actual, strict=True):
        if isinstance(e, torch.Tensor):
            if has_value:
                torch.testing.assert_close(a, e, equal_nan=True)
            strides = zip(e.size(), e.stride(), a.stride(), strict=True)
            assert e.numel() == 0 or all(x == y for size, x, y in strides if size != 1)
            assert [shares(e, t) for t in theirs] == [shares(a, m) for m in mine]
    for t, m in zip(theirs, mine, strict=True):
        torch.testing.assert_close(m, t, equal_nan=True)


def variants(op: Any) -> list[Any]:
    return [f for f in (op.op, op.inplace_variant) if f is not None]


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_samples(chunk, monkeypatch):
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("torch.testing") and hasattr(module, "wrapper_set_seed"):
            # A seed set inside the operator would be set while tracing and not when running.
            monkeypatch.setattr(module, "wrapper_set_seed", lambda function, *args, **kwargs: function(*args, **kwargs))
    failures = []
    checked = 0
    for op in op_db[chunk::CHUNKS]:
        if torch.float32 not in op.dtypes or op.name in UNDECLARED_VIEWS or op.name.startswith("jiterator"):
            continue
        for sample in itertools.islice(op.sample_inputs("cpu", torch.float32), 1):
            for function in variants(op):
                with torch.no_grad(), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    try:
                        check(function, (sample.input, *sample.args), sample.kwargs, op.name not in NO_VALUE)
                        checked += 1
                    except Exception as error:  # collected, so that one run names all operators that fail
                        failures.append(f"{op.name}: {type(error).__name__}: {str(error)[:200]}")
    assert not failures, "\n".join(failures)
    assert checked > 50
