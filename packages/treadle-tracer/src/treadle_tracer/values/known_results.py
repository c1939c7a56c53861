"""Calls whose results have sizes that depend on elements, of elements that are known.

steps = torch.linspace(0, 999, 20).flip(0)
(steps == steps[3]).nonzero()               # one element, which is written into the graph
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.values.base import Constant
from treadle_tracer.values.known_elements import MOST_ELEMENTS, constant_elements
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.value import NotConstant, Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_SIZED_BY_ELEMENTS = frozenset(
    "nonzero argwhere masked_select unique unique_consecutive bincount repeat_interleave where".split()
)


def known_result(tx: TraceContext, target: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """The result of a call whose sizes depend on elements, where all its tensors are known; None for every other call."""
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    every = [*args, *kwargs.values()]
    if name not in _SIZED_BY_ELEMENTS or (name == "where" and len(every) > 1):
        return None
    if not any(isinstance(arg, TensorValue) for arg in every):
        return None
    try:
        given = [_known_argument(tx, arg) for arg in args]
        named = {key: _known_argument(tx, arg) for key, arg in kwargs.items()}
        with torch.no_grad():
            found = getattr(given[0], name)(*given[1:], **named) if target is name else target(*given, **named)
    except (_NotKnown, NotConstant, RuntimeError, ValueError, IndexError, TypeError):
        return None
    return _made(tx, found)


class _NotKnown(Exception):
    """An argument does not follow from constants. One that follows from symbols would fix these."""


def _known_argument(tx: TraceContext, value: Value) -> Any:
    if not isinstance(value, TensorValue):
        return value.constant()
    known = constant_elements(tx, value.known_node)
    if known is None:
        raise _NotKnown
    return known


def _made(tx: TraceContext, found: Any) -> Value | None:
    """A tensor, or a tuple of them, with the elements written into the graph."""
    if isinstance(found, tuple):
        parts = [_made(tx, part) for part in found]
        return None if None in parts else TupleValue([part for part in parts if part is not None])
    if not isinstance(found, torch.Tensor) or found.numel() > MOST_ELEMENTS:
        return None
    dtype: dict[str, Value] = {"dtype": Constant(found.dtype)}
    if not found.numel():
        layout = [tx.from_constant(tuple(found.shape)), tx.from_constant(found.stride())]
        return tx.run_in_graph("call_function", torch.empty_strided, layout, dtype)
    order = sorted(range(found.dim()), key=found.stride().__getitem__, reverse=True)
    made = tx.run_in_graph("call_function", torch.tensor, [tx.from_constant(found.permute(order).tolist())], dtype)
    if order != sorted(order):
        inverse = [Constant(order.index(d)) for d in range(found.dim())]
        made = tx.run_in_graph(
            "call_method", "clone", [tx.run_in_graph("call_method", "permute", [made, *inverse], {})], {}
        )
    return tx.run_in_graph("call_method", "view_as", [made, made], {}) if found._is_view() else made
