"""Writes to memory that another argument of the same call reads at other places: ``x[1:] += x[:-1]``.

PyTorch refuses them where both tensors are dense (aten/src/ATen/MemoryOverlap.cpp, get_overlap_status). Fake tensors have no memory, so
they never refuse.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from treadle_shapes.torch import Kind
from treadle_shapes.torch import operator as operator_record
from treadle_tracer.values.call_effects import storages

_AT_POSITIONS = (Kind.SCATTER, Kind.SCAN, Kind.SORT)
"""What operators of these kinds write depends on elements at other places, so that PyTorch also refuses to read the written tensor.

Of the operators that write where `out=` says, all but pointwise ones refuse that, or read what they have written already.
"""


def why_overlaps(node: fx.Node, written: list[fx.Node]) -> str | None:
    """Why PyTorch refuses the call of a node that writes to these arguments; None where it does not, and where only the data can tell."""
    if node.target is operator.setitem:
        return _why_item_overlaps(*node.args)
    read: list[fx.Node] = []
    fx.node.map_arg((node.args, node.kwargs), read.append)
    for argument in written:  # a tensor that is also read stands there twice
        if argument in read:
            read.remove(argument)
    record = operator_record(node.target)
    exactly = record is None or record.kind not in _AT_POSITIONS
    if node.kwargs.get("out") is not None:
        exactly = record is not None and record.kind is Kind.POINTWISE
    for target in written:
        for argument in read:
            reason = _why_overlap(_value_of(target), _value_of(argument), exactly)
            if reason is not None:
                return reason
    return None


def _why_item_overlaps(target: Any, index: Any, given: Any) -> str | None:
    """As `why_overlaps`, of ``target[index] = given``: only the memory of the items is written."""
    written, value = _value_of(target), _value_of(given)
    if not isinstance(value, torch.Tensor) or not storages(written) & storages(value):
        return None
    found = fx.node.map_aggregate(index, _value_of)
    if any(isinstance(part, (torch.Tensor, list)) for part in (found if isinstance(found, tuple) else (found,))):
        return _why_overlap(written, value, False)
    with torch.no_grad():
        return _why_overlap(written[found], value, True)


def _value_of(argument: Any) -> Any:
    return argument.meta.get("example_value") if isinstance(argument, fx.Node) else argument


def _why_overlap(written: Any, read: Any, exactly: bool) -> str | None:
    """exactly: whether the two may be the same elements at the same places."""
    if not _is_strided(written) or not _is_strided(read) or not storages(written) & storages(read):
        return None
    if written is read or (_have_one_layout(written, read) and written.dtype == read.dtype):
        return None if exactly else "it writes to memory that it reads"
    if any(_is_certain(size == 0) for tensor in (written, read) for size in tensor.shape):
        return None
    if not _is_dense(written) or not _is_dense(read):
        return None
    (start, end), (other_start, other_end) = _extent(written), _extent(read)
    overlap = _is_certain(start < other_end) and _is_certain(other_start < end)
    return "it writes to memory that it reads at other places" if overlap else None


def _is_certain(condition: Any) -> bool:
    """Whether a comparison of sizes holds; False where only the data can tell."""
    return condition.node.guard_or_false() if isinstance(condition, torch.SymBool) else condition  # type: ignore[no-any-return]


def _is_strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one stretch of memory, each at a place of its own."""
    left = [
        (step, size) for size, step in zip(tensor.shape, tensor.stride(), strict=True) if not _is_certain(size == 1)
    ]
    expected: Any = 1
    while left:
        following = next((place for place, (step, _) in enumerate(left) if _is_certain(step == expected)), None)
        if following is None:
            return False
        expected *= left.pop(following)[1]
    return True


def _have_one_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    numbers, others = ((t.storage_offset(), *t.shape, *t.stride()) for t in (a, b))
    return a.dim() == b.dim() and all(_is_certain(one == other) for one, other in zip(numbers, others, strict=True))


def _extent(tensor: torch.Tensor) -> tuple[int | torch.SymInt, int | torch.SymInt]:
    """The first byte of a dense tensor in its storage, and the byte behind its last."""
    start = tensor.storage_offset() * tensor.element_size()
    return start, start + tensor.numel() * tensor.element_size()


__all__ = ["why_overlaps"]
