"""Inputs that a graph begins to differentiate by, before it does anything else.

    def residual(x, t):                                  x, t require gradients, then a graph without the two calls:
        x.requires_grad_()                        ==>
        t.requires_grad_()                                   def residual(x, t):
        return gradient(u(x, t), x)                              return gradient(u(x, t), x)

Nothing comes before these calls, so that it makes no difference whether the graph makes them or the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

_NOTHING_HAPPENS = frozenset({"placeholder", "get_attr"})


def early_leaves(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> list[int]:
    """The positions of inputs for which the graph calls `requires_grad_(True)` before any other node runs."""
    placeholders = gm.graph.find_nodes(op="placeholder")
    marked = [placeholders.index(node.args[0]) for node in _first_calls(gm)]
    return [k for k in dict.fromkeys(marked) if _may_begin(example_inputs[k], example_inputs)]


def without_first_calls(gm: fx.GraphModule, positions: Sequence[int]) -> fx.GraphModule:
    """A copy of the graph in which the inputs at `positions` stand for what those calls return."""
    placeholders = gm.graph.find_nodes(op="placeholder")
    skipped = {node for node in _first_calls(gm) if placeholders.index(node.args[0]) in positions}
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        copies[node] = copies[node.args[0]] if node in skipped else graph.node_copy(node, copies.__getitem__)
    return fx.GraphModule(gm, graph)


def _first_calls(gm: fx.GraphModule) -> list[fx.Node]:
    found: list[fx.Node] = []
    for node in gm.graph.nodes:
        if node.op in _NOTHING_HAPPENS:
            continue
        begins = node.op == "call_method" and node.target == "requires_grad_" and node.args[1:] in ((), (True,))
        if not begins or node.kwargs or node.args[0].op != "placeholder":
            break
        found.append(node)
    return found


def _may_begin(value: Any, inputs: Sequence[Any]) -> bool:
    """Whether the tensor is a leaf that requires no gradients, and stands for itself alone among the inputs."""
    if not isinstance(value, torch.Tensor) or value.requires_grad or not value.is_leaf or value._is_view():
        return False
    return sum(other is value for other in inputs) == 1
