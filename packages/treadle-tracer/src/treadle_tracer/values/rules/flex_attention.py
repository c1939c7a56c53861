"""The operator behind `torch.nn.attention.flex_attention`, traced as the products and the softmax that it stands for.

On CPUs, long sequences under a mask are computed for a block of queries at a time, with the range of keys that the mask leaves it:

    queries 256 - 383 of a window of 200     ==>     softmax(q[:, :, 256:384] @ k[:, :, 57:384].mT) @ v[:, :, 57:384]

The range comes of the mask's own function, as everything in eager does; eager does not read the tables of a `BlockMask`. What eager
multiplies by a probability of zero is left out, so that NaN in a value that no query may see does not spread to all of them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ConstSource
from treadle_tracer.values.base import Constant, LazyValue
from treadle_tracer.values.constant_masks import known_ranges, ranges_of
from treadle_tracer.values.functions import FunctionValue
from treadle_tracer.values.rules.function_transforms import value_of_tree
from treadle_tracer.values.rules.rule import Args, Effect, Kwargs, Rule
from treadle_tracer.values.tensor import TensorValue

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext, Value

Modification = Callable[..., torch.Tensor]
Sizes = tuple[int, int, int, int]
"""Batches, heads, queries and keys."""

_LONG = 512 * 1024
"""Products of queries and keys from which a block of queries at a time is worth its calls."""
_ROWS = 128
"""Queries of a block, at least."""
_MOST_BLOCKS, _BLOCKS_OF_ANY_SIZE = 16, 8
"""Each block is traced and compiled."""
_COLUMNS = 64
"""Ranges of keys begin at a multiple."""


def attention(
    operator: Any,
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
    blocks: int = 1,
) -> tuple[torch.Tensor, ...]:
    """Return what the operator returns: the result in the query's order of axes, logarithms of base 2 of sums and largest scores.

    The options tell whether anybody reads the latter two; they are empty otherwise. blocks: into how many the queries may be split.
    """
    key, value = _as_many_heads(query, key, value)
    sizes = (*query.shape[:3], key.shape[2])
    seen = _mask_of(block_mask[-1], mask_buffers, sizes, query.device)
    modify = _modification(score_mod, score_buffers)
    if blocks == 1 or seen is None or sizes[2] < 2 * _ROWS or sizes[2] * sizes[3] < _LONG:
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
    rows = sizes[2] // blocks
    bounds = [*[block * rows for block in range(blocks)], sizes[2]]
    found = []
    for block, (start, length, origin) in enumerate(_ranges(seen, bounds)):
        first, count = bounds[block], bounds[block + 1] - bounds[block]
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
    if modify is None and (
        seen is None or query.device.type != "cpu"
    ):  # with a mask, the CPU's fused kernel is no faster
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


def _ranges(seen: torch.Tensor, bounds: list[int]) -> list[tuple[int, int, Any]]:
    """The first key that each block of queries reads, how many it reads, and the first one again, for use in a modification.

    Here they are read from the mask, which depends on inputs.
    """
    starts, lengths = ranges_of(seen, bounds, _COLUMNS)
    ranges = list(zip(starts.tolist(), lengths.tolist(), starts.unbind(), strict=True))
    for start, length, _ in ranges:
        torch._check(start >= 0)
        torch._check(length >= 2)
        torch._check(start + length <= seen.shape[3])
    return ranges


def _in_order_of(out: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """A copy whose axes lie in memory as the query's do, the last one innermost."""
    strides = query.stride()
    order = [*sorted(range(out.dim() - 1), key=lambda axis: strides[axis], reverse=True), out.dim() - 1]
    back = [order.index(axis) for axis in range(out.dim())]
    return out.permute(order).contiguous().permute(back)


def most_blocks(query: torch.Tensor, key: torch.Tensor) -> int:
    """Into how many blocks the queries may be split."""
    if query.device.type != "cpu":  # the ranges of keys would have to be read back
        return 1
    if not all(type(size) is int for size in (query.shape[2], key.shape[2])):
        return _BLOCKS_OF_ANY_SIZE
    return max(1, min(query.shape[2] // _ROWS, _MOST_BLOCKS))


def _operator(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    args = [arg.force(tx) if isinstance(arg, LazyValue) else arg for arg in args]
    query, key = args[1:3]
    if not isinstance(query, TensorValue) or not isinstance(key, TensorValue):
        raise Unsupported("function-transform", "flex_attention of other arguments than tensors")
    blocks = Constant(most_blocks(query.fake, key.fake))
    return tx.inline(tx.wrap_known(attention), args, {**kwargs, "blocks": blocks})


def _ranges_in_trace(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    seen, bounds = args
    known = None
    if isinstance(seen, TensorValue) and all(bound.is_constant() for bound in bounds.unpack(tx)):
        known = known_ranges(seen.node(tx), [bound.constant() for bound in bounds.unpack(tx)], _COLUMNS)
    if known is None:
        return tx.inline(FunctionValue.outside(tx, _ranges, ConstSource(_ranges)), args, kwargs)
    return value_of_tree([(start, length, start) for start, length in known], Constant)


RULES = (
    Rule(_ranges, _ranges_in_trace, Effect.GRAPH),
    Rule("torch._higher_order_ops.flex_attention.FlexAttentionHOP.__call__", _operator, Effect.GRAPH),
)
