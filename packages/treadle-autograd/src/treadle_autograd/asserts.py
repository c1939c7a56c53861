"""Asserts on symbolic numbers: ``aten._assert_scalar.default(condition, message)`` nodes, and where they stand.

Whatever relies on a fact about a number that only the run of the graph can tell must come after the check of that fact.
`hoist_asserts` moves every check right behind the last node that it needs:

    %u = aten._local_scalar_dense(%t)                  %u = aten._local_scalar_dense(%t)
    %zeros = aten.full([%u], 0)               ==>      %ge = operator.ge(%u, 0)
    %ge = operator.ge(%u, 0)                           %_ = aten._assert_scalar(%ge, "n >= 0 does not hold")
    %_ = aten._assert_scalar(%ge, "n >= 0 ...")        %zeros = aten.full([%u], 0)
"""

from __future__ import annotations

import torch
from torch import fx
from torch.types import py_sym_types

from .symbolic_nodes import metadata_query

aten = torch.ops.aten

_NUMBERS = (*py_sym_types, bool, int, float)


def is_assert(node: fx.Node) -> bool:
    return node.target is aten._assert_scalar.default


def hoist_asserts(graph: fx.Graph) -> None:
    """Move every assert, with the arithmetic it needs, right behind the last operator or input that it depends on.

    Asserts that become ready behind the same node keep their order.
    """
    nodes = list(graph.nodes)
    if not any(map(is_assert, nodes)):
        return
    arithmetic, operands = _dependencies(nodes)
    pending = [node for node in nodes if is_assert(node)]
    placed: dict[fx.Node, None] = {}
    for node in nodes:
        placed.setdefault(node)
        if pending and not (node.op == "placeholder" and node.next.op == "placeholder"):
            ready = [found for found in pending if operands[found] <= placed.keys()]
            pending = [found for found in pending if found not in ready]
            for found in ready:
                placed.update(arithmetic[found])
    order = list(placed)
    for before, node in zip(order, order[1:], strict=False):
        before.append(node)


def _dependencies(
    nodes: list[fx.Node],
) -> tuple[dict[fx.Node, dict[fx.Node, None]], dict[fx.Node, set[fx.Node]]]:
    """For every assert and arithmetic node: the arithmetic that it needs, in order, and the operators and inputs that it depends on."""
    arithmetic: dict[fx.Node, dict[fx.Node, None]] = {}
    operands: dict[fx.Node, set[fx.Node]] = {}
    for node in nodes:
        if is_assert(node) or _is_arithmetic(node):
            arithmetic[node], operands[node] = {}, set()
            for used in node.all_input_nodes:
                arithmetic[node].update(arithmetic.get(used, {}))
                operands[node] |= operands.get(used, {used})
            arithmetic[node][node] = None
    return arithmetic, operands


def _is_arithmetic(node: fx.Node) -> bool:
    """Whether the node computes a number from numbers or from a tensor's metadata, without an effect."""
    if node.op != "call_function":
        return False
    return metadata_query(node.target) is not None or (
        not isinstance(node.target, torch._ops.OpOverload) and isinstance(node.meta.get("val"), _NUMBERS)
    )
