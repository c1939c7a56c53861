"""Sequences within an index that hold tensors: `x[[i, j], :2]` with tensors `i` and `j` of one integer each.

PyTorch makes an index tensor of such a sequence, for which it reads the integers. In the graph they are stacked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from treadle_tracer.values.base import Constant, LazyValue
from treadle_tracer.values.sequences import ListValue, TupleValue
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.torch_calls import run_in_graph
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def with_stacked_integers(tx: TraceContext, key: Value) -> Value:
    """The key of an item with tensors in place of such sequences."""
    if not isinstance(key, TupleValue):
        return key  # where a whole key is a list of tensors, PyTorch takes it for a tuple
    items = [_stacked(tx, item) or item for item in key.items]
    return key if all(new is old for new, old in zip(items, key.items, strict=True)) else TupleValue(items)


def _stacked(tx: TraceContext, item: Value) -> Value | None:
    item = item.force(tx) if isinstance(item, LazyValue) else item
    if not isinstance(item, (ListValue, TupleValue)) or item.python_type() not in (list, tuple):
        return None
    parts = [part.force(tx) if isinstance(part, LazyValue) else part for part in item.items]
    devices = {part.fake.device for part in parts if isinstance(part, TensorValue)}
    if len(devices) != 1 or not all(map(_is_integer, parts)):
        return None
    (device,) = devices
    return run_in_graph(tx, "call_function", torch.stack, [ListValue([_as_index(tx, p, device) for p in parts])], {})


def _is_integer(part: Value) -> bool:
    if isinstance(part, TensorValue):
        return part.python_type() is torch.Tensor and part.fake.dim() == 0 and part.fake.dtype in _INTEGERS
    return isinstance(part, Constant) and type(part.obj) is int


def _as_index(tx: TraceContext, part: Value, device: torch.device) -> Value:
    if isinstance(part, TensorValue):
        if part.fake.dtype is torch.int64:
            return part
        return run_in_graph(tx, "call_function", torch.Tensor.to, [part, Constant(torch.int64)], {})
    options = {"dtype": Constant(torch.int64), "device": Constant(device)}
    return run_in_graph(tx, "call_function", torch.full, [TupleValue([]), part], options)
