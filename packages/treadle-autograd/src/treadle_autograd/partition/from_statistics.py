"""Results of batch norms that backward computes again from the statistics, at the price of a pointwise chain.

    forward    %bn = _native_batch_norm_legit_functional(%x, %w, %b, ...)     items 0 (the result), 1, 2 (mean and invstd)
               %scale = %invstd * %w;  %shift = %b - %mean * %scale           one number for each channel
    backward   item 0 again: %x * %scale + %shift

A batch norm in training is a reduction, which is not computed twice; its result is no more than a pointwise function of the statistics. So
the input alone is saved where an activation that backward reads is behind (silu, hardswish), instead of input and result.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from treadle_shapes.torch import Kind
from treadle_shapes.torch import operator as operator_of

from .calls import Calls

aten = torch.ops.aten
_RESULT, _MEAN, _INVSTD = range(3)
_SAME_VALUES = frozenset({Kind.COPY, Kind.VIEW})


@dataclass(frozen=True)
class FromStatistics:
    """x * scale + shift: nodes of the joint graph, the last two with an element for each channel."""

    x: fx.Node
    scale: fx.Node
    shift: fx.Node
    calls: Calls = field(repr=False, compare=False)

    @property
    def inputs(self) -> tuple[fx.Node, ...]:
        return (self.x, self.scale, self.shift)


def add_rules(graph: fx.Graph, backward: Collection[fx.Node]) -> dict[fx.Node, FromStatistics]:
    """Rules for the results of batch norms in training that backward reads itself; scales and shifts are added to the graph.

    What only other operators of the program read (`relu`, whose backward reads its result) is left as it is: convolutions behind read it in
    backward, so it would be written to memory there once more.
    """
    found, calls = {}, Calls()
    for node in list(graph.nodes):
        if not _is_in_training(node):
            continue
        items = {user.args[1]: user for user in node.users if user.target is operator.getitem}
        result, mean, invstd = (items.get(number) for number in (_RESULT, _MEAN, _INVSTD))
        if result is None or mean is None or invstd is None or node.meta.get("checkpoint") is not None:
            continue
        if _is_read(result, backward) and _is_pointwise(node, result):
            found[result] = _rule(graph, node, mean, invstd, calls)
    return found


def _is_in_training(node: fx.Node) -> bool:
    """Whether the node is a batch norm that computes the statistics of its batch."""
    found = operator_of(node.target)
    if found is None or not found.gives_statistics:
        return False
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    return node.args[names.index("training")] is True


def _is_read(node: fx.Node, backward: Collection[fx.Node]) -> bool:
    """Whether the derivative of an operator reads the node, or a copy or view of it."""
    for user in node.users:
        if user in backward or user.meta.get("of_backward"):
            return True
        found = operator_of(user.target)
        if found is not None and found.kind in _SAME_VALUES and _is_read(user, backward):
            return True
    return False


def _is_pointwise(node: fx.Node, result: fx.Node) -> bool:
    """Whether x * scale + shift has the metadata of the result."""
    x: Any = node.args[0]
    made, given = result.meta["val"], x.meta["val"]
    return (
        made.dtype == given.dtype
        and given.is_floating_point()
        and tuple(made.shape) == tuple(given.shape)
        and tuple(made.stride()) == tuple(given.stride())
        and aten.is_non_overlapping_and_dense(given)
    )


def _rule(graph: fx.Graph, norm: fx.Node, mean: fx.Node, invstd: fx.Node, calls: Calls) -> FromStatistics:
    x, weight, bias = norm.args[:3]
    behind = norm.next
    while behind.target is operator.getitem and behind.args[0] is norm:
        behind = behind.next
    scale = invstd
    with graph.inserting_before(behind):
        if isinstance(weight, fx.Node):
            scale = calls.append(graph, norm, aten.mul.Tensor, invstd, weight)
        shift = calls.append(graph, norm, aten.mul.Tensor, mean, scale)
        if isinstance(bias, fx.Node):
            shift = calls.append(graph, norm, aten.sub.Tensor, bias, shift)
        else:
            shift = calls.append(graph, norm, aten.neg.default, shift)
    assert isinstance(x, fx.Node)
    return FromStatistics(x, scale, shift, calls)


def compute_again(graph: fx.Graph, node: fx.Node, rule: FromStatistics, copies: Mapping[fx.Node, fx.Node]) -> fx.Node:
    """Append to `graph` the nodes that compute `node` by its rule; returns the last."""
    call = rule.calls.append
    x, scale, shift = (copies[used] for used in rule.inputs)
    dtype, statistics = x.meta["val"].dtype, shift.meta["val"].dtype
    per_channel = [-1] + [1] * (x.meta["val"].dim() - 2)
    wide = x if dtype == statistics else call(graph, node, aten._to_copy.default, x, dtype=statistics)
    product = call(graph, node, aten.mul.Tensor, wide, call(graph, node, aten.view.default, scale, per_channel))
    moved = call(graph, node, aten.view.default, shift, per_channel)
    result = call(graph, node, aten.add.Tensor, product, moved)
    return result if dtype == statistics else call(graph, node, aten._to_copy.default, result, dtype=dtype)


__all__ = ["FromStatistics", "add_rules", "compute_again"]
