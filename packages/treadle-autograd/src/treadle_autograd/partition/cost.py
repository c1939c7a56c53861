"""What computing a node once more costs, in nanoseconds of one core, roughly: enough to compare nodes with each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from treadle_shapes.torch import Cost, Kind
from treadle_shapes.torch import operator as operator_of

from ..node_sizes import numel, shape_of

# Nanoseconds per element. A heavy operator whose work is not counted below passes over its elements a few times.
_PER_ELEMENT: Mapping[Cost, float] = {
    Cost.FREE: 0.0,
    Cost.CHEAP: 0.3,
    Cost.TRANSCENDENTAL: 1.0,
    Cost.REDUCTION: 0.5,
    Cost.HEAVY: 4.0,
}
_NANOSECONDS_PER_FLOP = 1 / 50  # 50 Gflop/s


def recompute_cost(node: fx.Node) -> float:
    """The cost of the node alone. Symbolic sizes count with the sizes of the first call."""
    record = operator_of(node.target) if isinstance(node.target, torch._ops.OpOverload) else None
    if record is None:
        return 0.0
    count = _FLOPS.get(record.kind)
    if count is not None:
        return count(node) * _NANOSECONDS_PER_FLOP
    sizes = [numel(used) for used in node.all_input_nodes]
    return _PER_ELEMENT[record.cost] * max([numel(node), *sizes], default=0)


def _matmul_flops(node: fx.Node) -> int:
    """2 m n k: the sizes of the result, and the last size of the left matrix, the last argument but one of two dimensions or more."""
    matrices = [used for used in node.all_input_nodes if len(shape_of(used)) >= 2]
    left = matrices[-2] if len(matrices) >= 2 else node
    return 2 * numel(node) * (shape_of(left)[-1] if shape_of(left) else 1)


def _convolution_flops(node: fx.Node) -> int:
    """Two per weight and element of the result's channels: 2 * numel(result) * weights per output channel."""
    weight: Any = node.args[1]
    return 2 * numel(node) * (numel(weight) // max(shape_of(weight)[0], 1)) if isinstance(weight, fx.Node) else 0


def _attention_flops(node: fx.Node) -> int:
    """Two products: queries with keys, and probabilities with values."""
    query, key = (shape_of(used) for used in node.args[:2] if isinstance(used, fx.Node))
    batch = 1
    for size in query[:-2]:
        batch *= size
    return 4 * batch * query[-2] * key[-2] * query[-1] if len(query) >= 2 and len(key) >= 2 else 0


_FLOPS: Mapping[Kind, Callable[[fx.Node], int]] = {
    Kind.MATMUL: _matmul_flops,
    Kind.CONVOLUTION: _convolution_flops,
    Kind.ATTENTION: _attention_flops,
}
