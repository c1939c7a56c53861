"""Masks of attention that follow from sizes alone, causal ones and windows: the keys that a block of queries reads are known."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from treadle_tracer.made_calls import make_calls
from treadle_tracer.values.function_transform import FunctionTransform
from treadle_tracer.values.known_elements import follows_from_arguments, made_until_now

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

COLUMNS = 64
"""The multiple at which ranges of keys begin."""

_MOST_ELEMENTS = 2**26
_MOST_KEPT = 64

Ranges = list[tuple[int, int]]
_kept: OrderedDict[tuple[Any, ...], Ranges] = OrderedDict()
"""Ranges by the calls that give a mask, and the bounds: the layers of a model share them."""


def ranges_of(seen: torch.Tensor, bounds: Sequence[int], multiple: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each block of queries the first key that one of them sees, rounded down to a multiple, and how many until the last.

    seen: (batches, heads, queries, keys). Two keys at least: one has a product of its own.
    """
    blocks = torch.stack([seen.narrow(2, a, b - a).any(2).flatten(0, 1).any(0) for a, b in pairwise(bounds)])
    places = torch.arange(seen.shape[3], device=seen.device)
    end = torch.where(blocks, places + 1, 0).amax(1).clamp(min=2)
    start = torch.where(blocks, places, seen.shape[3]).amin(1) // multiple * multiple
    start = torch.minimum(start, end - 2)
    return start, end - start


def known_ranges(tx: TraceContext, mask: fx.Node, bounds: Sequence[int], multiple: int) -> Ranges | None:
    """`ranges_of` what a node gives, where that depends on no input and nobody has written to it."""
    made = made_until_now(tx, mask, _is_of_constants)
    if made is None or made.numbers:
        return None
    key = (_text(made.calls), made.calls.index(mask), tuple(bounds), multiple, torch.get_default_dtype())
    found = _kept.pop(key, None)
    if found is None:
        values: dict[fx.Node, Any] = {}
        try:
            with torch.no_grad(), torch._C.DisableTorchFunction():
                make_calls(made.calls, values)
                starts, lengths = ranges_of(values[mask], bounds, multiple)
        except (RuntimeError, ValueError, IndexError, TypeError):
            return None  # the program raises it where it makes the call
        found = list(zip(starts.tolist(), lengths.tolist(), strict=True))
    _kept[key] = found
    if len(_kept) > _MOST_KEPT:
        _kept.popitem(last=False)
    return found


def _is_of_constants(node: fx.Node) -> bool:
    """Whether a call may be made while tracing, its arguments given."""
    if node.op not in ("call_function", "call_method"):
        return False
    value = node.meta.get("example_value")
    tensors = value if isinstance(value, (tuple, list)) else [value]
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu" or tensor.requires_grad:
            return False
        if not all(type(size) is int for size in tensor.shape) or tensor.numel() > _MOST_ELEMENTS:
            return False
    return all(map(follows_from_arguments, _calls_in(node)))


def _calls_in(node: fx.Node) -> Iterator[fx.Node]:
    """The node, or the calls of the functions that a transform calls."""
    if not isinstance(node.target, FunctionTransform):
        yield node
        return
    for body in node.target.calls:
        for inner in body.graph.graph.nodes:
            if inner.op not in ("placeholder", "output"):
                yield from _calls_in(inner)


def _text(nodes: Iterable[fx.Node]) -> tuple[Any, ...]:
    """What tells calls apart from others: their targets and arguments, nodes by position, and all of that for the bodies of transforms."""
    position: dict[fx.Node, str] = {}
    lines: list[Any] = []
    for node in nodes:
        given = fx.map_arg((node.args, dict(node.kwargs)), lambda used: _Place(position[used]))
        position[node] = f"%{len(position)}"
        target = node.target
        if isinstance(target, FunctionTransform):
            bodies = [
                (body.lifted, str(body.spec), body.leaves, _text(body.graph.graph.nodes)) for body in target.calls
            ]
            lines.append((target.name, repr(dict(target.options)), str(target.spec), repr(bodies), repr(given)))
        else:
            lines.append((node.op, target, repr(given)))
    return tuple(lines)


class _Place(str):
    """A node among arguments."""

    __repr__ = str.__str__
