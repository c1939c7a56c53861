"""The operator behind `torch.nn.attention.flex_attention` as Python, traced in its place.

On CPUs, long sequences under a mask are computed for a block of queries at a time, with the range of keys that the mask leaves it:

    queries 256 - 383 of a window of 200     ==>     softmax(q[:, :, 256:384] @ k[:, :, 57:384].mT) @ v[:, :, 57:384]

The range comes of the mask's own function, as everything in eager does; eager does not read the tables of a `BlockMask`. What eager
multiplies by a probability of zero is left out, so that NaN in a value that no query may see does not spread to all of them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from treadle_tracer.values.constant_masks import COLUMNS, ranges_of

Modification = Callable[..., torch.Tensor]
Sizes = tuple[int, int, int, int]
"""Batches, heads, queries and keys."""

LONG = 512 * 1024
"""Products of queries and keys from which a block of queries at a time is worth its calls."""
ROWS, ROWS_OF_UNKNOWN = 128, 256
"""Queries of a block, at least. A block takes longer to trace and to compile where the range of its keys is a symbol."""
MOST_BLOCKS, BLOCKS_OF_ANY_SIZE = 16, 8


def attention(
    operator: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    """Return what the operator returns: the result in the query's order of axes, logarithms of base 2 of sums and largest scores.

    The options tell whether anybody reads the latter two; they are empty otherwise.
    """
    kind = query.device.type
    knows_autocast = hasattr(sys.modules[type(operator).__module__], "flex_attention_autocast_cpu")
    if not torch.is_autocast_enabled(kind) or not knows_autocast:
        return _attention(query, key, value, *args, **kwargs)
    query, key, value = (_cast(t, torch.get_autocast_dtype(kind)) for t in (query, key, value))
    with torch.autocast(kind, enabled=False):
        return _attention(query, key, value, *args, **kwargs)


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.to(dtype)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Modification,
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: dict[str, Any],
    score_buffers: tuple[Any, ...] = (),
    mask_buffers: tuple[Any, ...] = (),
    *,
    blocks: int,
) -> tuple[torch.Tensor, ...]:
    """The operator's result. blocks: into how many the queries may be split."""
    key, value = _as_many_heads(query, key, value)
    sizes = (*query.shape[:3], key.shape[2])
    seen = _mask_of(block_mask[-1], mask_buffers, sizes, query.device)
    modify = _modification(score_mod, score_buffers)
    if blocks == 1 or seen is None or sizes[2] < 2 * ROWS or sizes[3] < COLUMNS or sizes[2] * sizes[3] < LONG:
        found = _attend(query, key, value, modify, seen, scale, sizes, (0, 0), kernel_options)
    else:
        found = _in_blocks(query, key, value, modify, seen, scale, sizes, kernel_options, blocks)
    return _in_order_of(found[0], query), found[1], found[2]


def _in_blocks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    modify: Modification | None,
    seen: torch.Tensor,
    scale: float,
    sizes: Sizes,
    options: dict[str, Any],
    blocks: int,
) -> Any:
    found = []
    for first, count, start, length, origin in ranges_in(seen, blocks):
        part, keys, values = query.narrow(2, first, count), key.narrow(2, start, length), value.narrow(2, start, length)
        mask = seen.narrow(2, first, count).narrow(3, start, length)
        counts = (*sizes[:2], count, length)
        found.append(_attend(part, keys, values, modify, mask, scale, counts, (first, origin), options))
    return [torch.cat(parts, 2 if parts[0].dim() > 1 else 0) for parts in zip(*found, strict=True)]


def _as_many_heads(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    groups, batches = query.shape[1] // key.shape[1], query.shape[0]
    if groups != 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if key.shape[0] != batches and (batches <= 1 or key.shape[0] != 1):
        raise RuntimeError(f"Bq and Bkv must broadcast. Got Bq={batches} and Bkv={key.shape[0]}")
    return key.expand(batches, -1, -1, -1), value.expand(batches, -1, -1, -1)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    modify: Modification | None,
    seen: torch.Tensor | None,
    scale: float,
    sizes: Sizes,
    origin: tuple[Any, Any],
    options: dict[str, Any],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention of queries to keys. seen: the mask. origin: the places of the first query and the first key among all."""
    precision = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = query.to(precision) @ key.to(precision).transpose(-2, -1)
    scores = (scores * scale).to(precision)
    if modify is not None:
        batches, heads, queries, keys = (torch.arange(size, device=query.device) for size in sizes)
        scores = modify(scores, batches, heads, queries + origin[0], keys + origin[1])
    if seen is not None:
        scores = torch.where(seen, scores, -math.inf)
    if modify is None and (seen is None or not _computes_masks(query, key, value)):
        out = scaled_dot_product_attention(query, key, value, seen, scale=scale)
    else:
        out = torch._safe_softmax(scores, -1).to(query.dtype) @ value.to(query.dtype)
    logsumexp = largest = query.new_empty(0)
    if options.get("OUTPUT_LOGSUMEXP", True):
        sees_none = torch.all(scores == -math.inf, dim=-1)
        logsumexp = torch.where(sees_none, -math.inf, scores.logsumexp(-1)) / math.log(2)
    if options.get("OUTPUT_MAX", True):
        largest = scores.max(-1)[0] / math.log(2)
    return out, logsumexp, largest


def _computes_masks(*tensors: torch.Tensor) -> bool:
    """Whether products and a softmax of masked scores are no slower than a fused kernel that reads the mask from memory.

    On CPUs they are not. On GPUs treadle-codegen makes one kernel of them, which computes the mask and leaves out keys that it hides, for
    numbers of 16 bits. In a backward pass all scores would be in memory at once, which a fused kernel never has.
    """
    if tensors[0].device.type == "cpu":
        return True
    differentiates = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    return tensors[0].dtype in (torch.float16, torch.bfloat16) and not differentiates


def _modification(score_mod: Modification, buffers: tuple[Any, ...]) -> Modification | None:
    """A function of the scores of all places and the places along each axis, or None: there is nothing to modify."""
    if score_mod is _module()._identity:
        return None
    return _of_places(score_mod, (0,), (None,) * len(buffers), buffers)


def _mask_of(mask_mod: Modification, buffers: tuple[Any, ...], sizes: Sizes, device: torch.device) -> Any:
    """Whether a query sees a key: (batches, heads, queries, keys), the first two 1 where the mask is the same for all. None: all do."""
    if mask_mod is _module().noop_mask:
        return None
    places = [torch.arange(size, device=device) for size in sizes]
    seen = _of_places(mask_mod, (), (None,) * len(buffers), buffers)(*places)
    for axis in (0, 1):
        if seen.stride(axis) == 0:
            seen = seen.narrow(axis, 0, 1)
    return seen


def _of_places(function: Modification, first: tuple[int, ...], last: tuple[None, ...], buffers: Any) -> Modification:
    """A function of one place as one of all: batches, heads, queries and keys."""
    for axis in (3, 2, 1, 0):
        own = tuple(0 if k == axis else None for k in range(4))
        function = torch.vmap(function, (*first, *own, *last))

    def run(*args: torch.Tensor) -> torch.Tensor:
        with _IndexByTensors():
            return function(*args, *buffers)

    return run


class _IndexByTensors(TorchFunctionMode):
    """Under it `x[i, j]` with tensors of one element is an index, as in a kernel; otherwise it reads their values."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            places = args[1] if isinstance(args[1], tuple) else (args[1],)
            if all(isinstance(place, torch.Tensor) for place in places):
                return torch.ops.aten.index.Tensor(args[0], list(places))
        return func(*args, **(kwargs or {}))


def _module() -> Any:
    return sys.modules["torch.nn.attention.flex_attention"]


def ranges_in(seen: torch.Tensor, blocks: int) -> list[tuple[int, int, int, int, Any]]:
    """Blocks of queries: the first query, how many, the first key, how many, and the first key again, for use in a modification.

    Here the keys are read from the mask, which depends on inputs.
    """
    bounds = bounds_of(seen.shape[2], blocks)
    starts, lengths = ranges_of(seen, bounds, COLUMNS)
    keys = list(zip(starts.tolist(), lengths.tolist(), starts.unbind(), strict=True))
    for start, length, _ in keys:
        torch._check(start >= 0)
        torch._check(length >= 2)
        torch._check(start + length <= seen.shape[3])
    return [(a, b - a, *found) for (a, b), found in zip(pairwise(bounds), keys, strict=True)]


def bounds_of(queries: int, blocks: int) -> list[int]:
    """Where blocks of queries begin, and the last one ends."""
    rows = queries // blocks
    return [*[block * rows for block in range(blocks)], queries]


def _in_order_of(out: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """A copy whose axes lie in memory as the query's do, the last one innermost."""
    strides = query.stride()
    order = [*sorted(range(out.dim() - 1), key=lambda axis: strides[axis], reverse=True), out.dim() - 1]
    back = [order.index(axis) for axis in range(out.dim())]
    return out.permute(order).contiguous().permute(back)
