"""Whether recorded results are linear in recorded arguments: whether the backward body of a custom function may run on parts of a gradient.

    g * mask                    linear in g
    torch.where(mask, g, 0)     linear
    g.clamp(-1, 1), g + 1       not linear: f(a) + f(b) is another value than f(a + b)

Operator records say in which of its arguments an operator is linear. What they do not tell counts as not linear, which is always safe.
"""

from __future__ import annotations

from collections.abc import Collection
from operator import getitem
from typing import Any

import torch
from torch import fx

from treadle_shapes.torch import ElementUse, Kind, operator


def is_linear(results: Collection[fx.Node], arguments: Collection[fx.Node]) -> bool:
    """Whether each of the results is a linear function of all `arguments` together, or zero."""
    depends = _dependent(results, arguments)
    return all(node in depends or _is_zero(node) for node in results) and all(
        node in arguments or why_not_linear(node, depends) is None for node in depends
    )


def _dependent(results: Collection[fx.Node], arguments: Collection[fx.Node]) -> set[fx.Node]:
    """The nodes that lead from the arguments to the results."""
    known: dict[fx.Node, bool] = dict.fromkeys(arguments, True)
    pending = list(results)
    while pending:
        node = pending[-1]
        behind = [] if node in known or _makes_values(node) else node.all_input_nodes
        waiting = [used for used in behind if used not in known]
        if waiting:
            pending += waiting
        else:
            known.setdefault(pending.pop(), any(known[used] for used in behind))
    return {node for node, is_dependent in known.items() if is_dependent}


def why_not_linear(node: fx.Node, depends: Collection[fx.Node]) -> str | None:
    """Why the result of a call is not known to be linear in those of its arguments that `depends` holds, or None."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return None if node.target is getitem else f"{node.target} is unknown"
    record = operator(node.target)
    if record is None:
        return f"{node.target} is unknown"
    if not _is_continuous(node.meta.get("val")):
        return f"{record.name} rounds"
    given = _given(node)
    dependent = {name for name, value in given.items() if any(used in depends for used in _nodes(value))}
    groups = ((next(iter(given)),),) if record.is_view else record.linear_in
    for group in groups:
        others = [given.get(name) for name in group if name not in dependent]
        if dependent.issubset(group) and all(map(_is_zero, others)):
            return None
    return f"{record.name} is not known to be linear in {', '.join(sorted(dependent))}"


def _is_continuous(result: Any) -> bool:
    return not isinstance(result, torch.Tensor) or result.dtype.is_floating_point or result.dtype.is_complex


def _makes_values(node: fx.Node) -> bool:
    """Whether the values of the call's result do not depend on those of its arguments (`zeros_like`)."""
    record = operator(node.target) if isinstance(node.target, torch._ops.OpOverload) else None
    numbers = [used for used in node.all_input_nodes if not isinstance(used.meta.get("val"), torch.Tensor)]
    return record is not None and record.kind is Kind.CREATION and not numbers


def _is_zero(value: Any) -> bool:
    """Whether an argument holds zeros only, or is none."""
    while isinstance(value, fx.Node) and isinstance(value.target, torch._ops.OpOverload):
        record = operator(value.target)
        if record is None:
            return False
        if record.filled_with is not None:
            number = record.filled_with
            value = _given(value).get(number) if isinstance(number, str) else number
        elif record.is_view or record.element_use is ElementUse.KEPT:
            value = value.args[0]
        else:
            return False
    return value is None or (not isinstance(value, fx.Node) and value == 0)


def _given(call: fx.Node) -> dict[str, Any]:
    """The arguments of a call of an operator by their names."""
    schema: Any = call.target._schema  # type: ignore[union-attr]
    return dict(zip([argument.name for argument in schema.arguments], call.args, strict=False)) | call.kwargs


def _nodes(value: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.node.map_arg(value, found.append)
    return found
