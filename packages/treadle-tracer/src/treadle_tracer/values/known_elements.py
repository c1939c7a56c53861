"""Elements of tensors that the program makes from constants: `torch.arange(2, 5).tolist()` is a constant of the trace."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from treadle_shapes.torch import operator as operator_record
from treadle_tracer.made_calls import is_small, make_calls
from treadle_tracer.values.call_effects import only_computes, storages

if TYPE_CHECKING:
    from torch import fx

    from treadle_tracer.values.value import TraceContext

MOST_ELEMENTS = 1024
_MOST_CALLS = 32


def known_number(tx: TraceContext, result: fx.Node | None) -> Any:
    """The element of a tensor with one element, which a node gives, as a Python number; None where it is not known."""
    known = known_elements(tx, result)
    return known.item() if known is not None and known.numel() == 1 else None


def known_elements(tx: TraceContext, result: fx.Node | None) -> torch.Tensor | None:
    """The tensor that a node gives, computed now; None unless it follows from constants alone and nothing has written to it."""
    calls = None if result is None else _calls_behind(result)
    if calls is None or _may_be_written(calls, tx.graph.nodes):
        return None
    found: dict[fx.Node, Any] = {}
    try:
        with torch.no_grad():
            make_calls(calls, found)
            return found[calls[-1]]
    except (RuntimeError, ValueError, IndexError, TypeError):
        return None  # the program raises it where it makes the call


def _calls_behind(result: fx.Node) -> list[fx.Node] | None:
    """All calls that the result depends on, in order; None if it depends on an input, or on a call that may not be made now."""
    pending, found = [result], {result}
    while pending:
        node = pending.pop()
        if len(found) > _MOST_CALLS or not _may_be_made_now(node):
            return None
        fresh = [given for given in node.all_input_nodes if given not in found]
        pending += fresh
        found.update(fresh)
    return sorted(found)


def _may_be_made_now(node: fx.Node) -> bool:
    if node.op not in ("call_function", "call_method") or not _has_few_elements(node.meta.get("example_value")):
        return False
    record = operator_record(node.target)
    return only_computes(node) and not (record is not None and record.is_uninitialised)


def _has_few_elements(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(_has_few_elements(item) for item in value)
    if not isinstance(value, torch.Tensor):
        return isinstance(value, (bool, int, float, torch.Size))
    return is_small(value, MOST_ELEMENTS) and not value.requires_grad


def _may_be_written(calls: list[fx.Node], nodes: Iterable[fx.Node]) -> bool:
    """Whether a call of the graph may have written to one of the tensors."""
    memory: set[int] = set().union(*[storages(node.meta.get("example_value")) for node in calls])
    known = set(calls)
    for node in nodes:
        if node not in known and any(
            storages(given.meta.get("example_value")) & memory for given in node.all_input_nodes
        ):
            if node.op == "output" or not only_computes(node):
                return True
    return False
