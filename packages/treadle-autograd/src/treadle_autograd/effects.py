"""Effects of a call: what must run even if nobody uses its result, because it draws random numbers, raises or does something unknown.

    y = x[i]                 # IndexError for some i
    z = torch.linalg.inv(a)  # LinAlgError for some a
    return x + 1             # the calls above are not dead code

Fake kernels raise for wrong sizes and dtypes while tracing. Values matter to few operators only: pointwise operators and reductions
never raise, integer division excepted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import fx

from treadle_shapes.torch import Raises, operator


def may_raise(func: Any, args: Sequence[Any], result: Any) -> bool:
    """Whether a call of the operator `func` raises for some values of its tensors. `result` is its fake result."""
    record = operator(func)
    if record is None or record.raises is Raises.NEVER:
        return False
    if record.raises is Raises.BY_ZERO_DIVISOR:
        integral = isinstance(result, torch.Tensor) and not result.dtype.is_floating_point and not result.is_complex()
        return integral and not (isinstance(args[1], int) and args[1] != 0)
    return True


def is_random(node: fx.Node) -> bool:
    """Whether the node draws random numbers. The tag also tells of operators outside ATen, which have no record."""
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def has_effect(node: fx.Node) -> bool:
    """Whether leaving out the node, when nobody uses its result, can be noticed. An unknown operator counts as having an effect."""
    return node.op != "call_function" or bool(node.meta.get("may_raise")) or changes_something(node)


def changes_something(node: fx.Node) -> bool:
    """Whether the call has an effect other than raising. Drawing random numbers is told by `is_random`."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False  # operator.getitem and arithmetic on symbolic numbers
    record = operator(node.target)
    return record is None or not record.is_pure


def remove_dead_nodes(graph: fx.Graph, keep: Collection[fx.Node] = ()) -> None:
    """Erase the nodes that nobody uses and that have no effect, but for those in `keep`."""
    for node in reversed(list(graph.nodes)):
        if not node.users and node not in keep and not has_effect(node):
            graph.erase_node(node)
