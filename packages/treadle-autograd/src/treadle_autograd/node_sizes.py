"""Sizes and bytes of the tensors that nodes compute. Symbolic sizes count as in the first call."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from treadle_shapes.torch import env_of, raw_expr

_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)


def is_number(node: fx.Node) -> bool:
    """Whether the node's value is a plain or symbolic number."""
    return isinstance(node.meta.get("val"), _NUMBERS)


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """The sizes of the node's tensor (the first, if it has several); symbolic ones as in the first call. () where it has none."""
    value = node.meta.get("val")
    if isinstance(value, (list, tuple)):
        value = next((item for item in value if isinstance(item, torch.Tensor)), None)
    return _shape(value) if isinstance(value, torch.Tensor) else ()


def bytes_of_tensor(tensor: torch.Tensor) -> int:
    """The bytes of a fake tensor's elements."""
    return math.prod(_shape(tensor)) * tensor.dtype.itemsize


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else _hint(size) for size in tensor.shape)


def numel(node: fx.Node) -> int:
    """The number of elements of the node's tensor (the first, if it has several), 0 where it is none."""
    value = node.meta.get("val")
    return math.prod(shape_of(node)) if isinstance(value, (torch.Tensor, list, tuple)) else 0


def size_in_bytes(node: fx.Node) -> int:
    """The bytes of the node's tensor; symbolic sizes count with the sizes of the first call. 0 where it is no tensor."""
    value = node.meta.get("val")
    return bytes_of_tensor(value) if isinstance(value, torch.Tensor) else 0


def _hint(size: Any) -> int:
    env = env_of(size)
    known = None if env is None else env.hint(raw_expr(size))
    return 1 if known is None else int(known)
