"""The rules of the operator behind `torch.nn.attention.flex_attention`: it is traced as `values.flex_attention`."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from treadle_shapes.torch import is_transforming
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ConstSource
from treadle_tracer.values import flex_attention
from treadle_tracer.values.base import Constant, LazyValue
from treadle_tracer.values.constant_masks import COLUMNS, known_ranges
from treadle_tracer.values.flex_attention import BLOCKS_OF_ANY_SIZE, MOST_BLOCKS, bounds_of, ranges_in
from treadle_tracer.values.functions import FunctionValue
from treadle_tracer.values.rules.function_transforms import value_of_tree
from treadle_tracer.values.rules.rule import Args, Effect, Kwargs, Rule
from treadle_tracer.values.tensor import TensorValue

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext, Value


def most_blocks(query: torch.Tensor, key: torch.Tensor) -> int:
    """Into how many blocks the queries may be split."""
    if (
        query.device.type != "cpu" or is_transforming()
    ):  # the ranges of keys could not be read, or would have to be read back
        return 1
    if not all(type(size) is int for size in (query.shape[2], key.shape[2])):
        return BLOCKS_OF_ANY_SIZE
    return max(1, min(query.shape[2] // flex_attention.ROWS, MOST_BLOCKS))


def _operator(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    args = [arg.force(tx) if isinstance(arg, LazyValue) else arg for arg in args]
    query, key = args[1:3]
    if not isinstance(query, TensorValue) or not isinstance(key, TensorValue):
        raise Unsupported("function-transform", "flex_attention of other arguments than tensors")
    blocks = Constant(most_blocks(query.fake, key.fake))
    return tx.inline(tx.wrap_known(flex_attention.attention), args, {**kwargs, "blocks": blocks})


def _ranges(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    seen, blocks = args
    assert isinstance(seen, TensorValue)
    queries = seen.fake.shape[2]
    if type(queries) is int:
        bounds = bounds_of(queries, blocks.constant())
        known = known_ranges(tx, seen.node(tx), bounds, COLUMNS)
        if known is not None:
            parts = [
                (a, b - a, start, length, start)
                for (a, b), (start, length) in zip(pairwise(bounds), known, strict=True)
            ]
            return value_of_tree(parts, Constant)
        blocks = Constant(max(1, min(blocks.constant(), queries // flex_attention.ROWS_OF_UNKNOWN)))
    return tx.inline(FunctionValue.outside(tx, ranges_in, ConstSource(ranges_in)), [seen, blocks], kwargs)


RULES = (
    Rule(ranges_in, _ranges, Effect.GRAPH),
    Rule("torch._higher_order_ops.flex_attention.FlexAttentionHOP.__call__", _operator, Effect.GRAPH),
)
