"""Backward graphs for passes in which some outputs have no tangent.

    def f(x): return x * 2, x.sqrt()                    only the first result has a tangent, t0
    dx = t0 * 2 + t1 / (2 * sqrt)           ==>         dx = t0 * 2

Autograd computes nothing from a gradient that is not defined. Zeros in its place give the same sums, unless a derivative is infinite:
0 * inf is nan. So the nodes that are computed from such tangents alone are left out. Where another node takes one of them, an addition
gives a copy of its other operand, and anything else takes zeros, as autograd's formulas do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import fx

from treadle_shapes.layouts import dense_strides

from ..graph_nodes import append_call
from ..shared_regions import tensor_key

aten = torch.ops.aten


def computed_from(
    nodes: Iterable[fx.Node], absent: Collection[fx.Node], others: Collection[fx.Node]
) -> frozenset[fx.Node]:
    """The nodes of a joint graph that depend on tangents, all of which are `absent`. others: the rest of the tangents."""
    found, other = set(absent), set(others)  # other: what depends on one of the rest
    for node in nodes:
        if node.op == "placeholder":
            continue
        if any(used in other for used in node.all_input_nodes):
            other.add(node)
        elif any(used in found for used in node.all_input_nodes):
            found.add(node)
    return frozenset(found)


def why_not_left_out(nodes: Iterable[fx.Node], gone: frozenset[fx.Node]) -> str | None:
    """Why the graph cannot do without the nodes `gone`, or None."""
    for node in nodes:
        if node in gone or node.op == "output" or left_operand(node, gone) is not None:
            continue
        for used in node.all_input_nodes:
            if used in gone and not _is_row_major(used.meta.get("val")):
                return f"{node.name} takes zeros for {used.name}, whose sizes are symbolic or not in row-major order"
    return None


def left_operand(node: fx.Node, gone: frozenset[fx.Node]) -> fx.Node | None:
    """The operand that is the node's value because the other one is `gone`; None where the node must be computed."""
    if node.target is not aten.add.Tensor or node.kwargs or len(node.args) != 2:
        return None
    first, second = node.args
    if not (isinstance(first, fx.Node) and isinstance(second, fx.Node)) or (first in gone) == (second in gone):
        return None
    left = second if first in gone else first
    value, result = tensor_key(left.meta["val"]), tensor_key(node.meta["val"])
    return left if value == result or _is_row_major_copy(value, result) else None


def append_copy(graph: fx.Graph, node: fx.Node, left: fx.Node) -> fx.Node:
    """Append what the addition `node` gives with one operand: memory of its own, as without anything `gone`, for gradients that are given
    to autograd share none with tangents or with each other."""
    is_laid_out = tensor_key(left.meta["val"]) == tensor_key(node.meta["val"])
    options = {} if is_laid_out else {"memory_format": torch.contiguous_format}
    made = append_call(graph, aten.clone.default, (left,), options)
    made.meta.update(node.meta)
    return made


def insert_zeros(
    graph: fx.Graph, node: fx.Node, gone: frozenset[fx.Node], copies: dict[fx.Node, fx.Node]
) -> Callable[[fx.Node], fx.Node]:
    """Append zeros for the arguments of the node that are `gone`. Returns what stands for its arguments."""
    for used in node.all_input_nodes:
        if used in gone and used not in copies:
            value = used.meta["val"]
            options = {"dtype": value.dtype, "device": value.device}
            copies[used] = append_call(graph, aten.full.default, (list(value.shape), 0), options)
            copies[used].meta["val"] = value
    return copies.__getitem__


def _is_row_major_copy(value: tuple[Any, ...], result: tuple[Any, ...]) -> bool:
    """Whether the tensors, by their keys, differ in nothing but strides, and the second one is in row-major order."""
    (*kind, (sizes, _)), (*other, (result_sizes, strides)) = value, result
    return kind == other and sizes == result_sizes and list(strides) == dense_strides(sizes)


def _is_row_major(value: Any) -> bool:
    """Whether it is a tensor of constant sizes in row-major order."""
    is_static = isinstance(value, torch.Tensor) and all(type(n) is int for n in (*value.shape, *value.stride()))
    return is_static and list(value.stride()) == dense_strides(value.shape)
