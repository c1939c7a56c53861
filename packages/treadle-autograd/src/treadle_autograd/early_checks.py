"""Move what may raise to the front of a graph that changes its inputs, so that inputs can be updated in place behind it.

    %p_1 = p - lr * g                                %step_1 = aten.add(%step, 1)
    %step_1 = aten.add(%step, 1)                     %u = aten._local_scalar_dense(%step_1)
    %u = aten._local_scalar_dense(%step_1)    ==>    %_ = aten._assert_scalar(%u > 0, ...)
    %_ = aten._assert_scalar(%u > 0, ...)            %p_1 = p - lr * g
    %q_1 = q - g / u                                 %q_1 = q - g / u

Random operators keep their order.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import fx

from .ancestors import ancestors
from .asserts import is_assert
from .effects import is_random

aten = torch.ops.aten


def move_checks_forward(graph: fx.Graph) -> None:
    """Put the nodes that may raise, and those that they depend on, in front of all other calls. Nothing else changes its order."""
    nodes = list(graph.nodes)
    early = ancestors(node for node in nodes if _may_stop(node))
    random = [node for node in nodes if is_random(node)]
    last = max((k for k, node in enumerate(random) if node in early), default=-1)
    early |= ancestors(random[: last + 1])
    levels = {} if last >= 0 else _levels(nodes)
    calls = [node for node in nodes if node.op not in ("placeholder", "output")]
    inputs = [node for node in nodes if node.op == "placeholder"]
    front = sorted([n for n in calls if n in early], key=lambda n: levels.get(n, 0))
    order = [*inputs, *front, *[n for n in calls if n not in early]]
    for before, node in zip(order, order[1:], strict=False):
        if before.next is not node:
            before.append(node)


def _levels(nodes: Iterable[fx.Node]) -> dict[fx.Node, int]:
    """How many numbers must be read from tensors, one after the other, before a node can run. Kernels of one level run together."""
    levels: dict[fx.Node, int] = {}
    for node in nodes:
        before = max((levels[used] for used in node.all_input_nodes), default=0)
        levels[node] = before + (node.target is aten._local_scalar_dense.default)
    return levels


def _may_stop(node: fx.Node) -> bool:
    """Whether a run of the graph may raise at the node, or reads a number there, about which there may be checks."""
    return is_assert(node) or node.target is aten._local_scalar_dense.default or bool(node.meta.get("may_raise"))
