"""Elements of tensors that the program makes from constants: `torch.arange(2, 5).tolist()` is a constant of the trace."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from treadle_shapes.torch import operator as operator_record
from treadle_tracer.made_calls import is_small, make_calls
from treadle_tracer.values.call_effects import name_of, only_computes, storages

if TYPE_CHECKING:
    from torch import fx

    from treadle_tracer.values.value import TraceContext

MOST_ELEMENTS = 1024
_MOST_CALLS = 64


def known_number(tx: TraceContext, result: fx.Node | None) -> Any:
    """The element of a tensor with one element, which a node gives, as a Python number; None where it is not known."""
    known = known_elements(tx, result)
    return known.item() if known is not None and known.numel() == 1 else None


def known_elements(tx: TraceContext, result: fx.Node | None) -> torch.Tensor | None:
    """The present elements of a tensor that a node has given; None unless they, and all that is written to them, follow from constants."""
    calls = None if result is None else _calls_until_now(result, tx.graph.nodes)
    if result is None or calls is None:
        return None
    found: dict[fx.Node, Any] = {}
    try:
        with torch.no_grad():
            make_calls(calls, found)
            return found[result]
    except (RuntimeError, ValueError, IndexError, TypeError):
        return None  # the program raises it where it makes the call


def _calls_until_now(result: fx.Node, nodes: Iterable[fx.Node]) -> list[fx.Node] | None:
    """All calls that the result depends on, and all that have written to the memory of these, in order.

    None if one of them may not be made now, or depends on an input.
    """
    calls: set[fx.Node] = set()
    pending = [result]
    while pending:
        if not _add_calls_behind(pending, calls):
            return None
        memory: set[int] = set().union(*[storages(node.meta.get("example_value")) for node in calls])
        pending = [node for node in nodes if node not in calls and _may_write(node, memory)]
    return sorted(calls)


def _add_calls_behind(pending: list[fx.Node], calls: set[fx.Node]) -> bool:
    """Add these calls and those that they depend on. False if one may not be made now, depends on an input, or they are too many."""
    while pending:
        node = pending.pop()
        if node in calls:
            continue
        if len(calls) >= _MOST_CALLS or not _may_be_made_now(node):
            return False
        calls.add(node)
        pending += node.all_input_nodes
    return True


_WRITES = frozenset(
    "iadd isub imul itruediv ifloordiv imod add_ sub_ mul_ div_ clamp_ neg_ abs_ round_ floor_ ceil_ copy_ fill_ zero_ setitem "
    "__setitem__".split()
)
"""Calls that write to an argument and may be made apart from the graph, on tensors made anew."""


def _may_be_made_now(node: fx.Node) -> bool:
    if node.op not in ("call_function", "call_method"):
        return False
    value = node.meta.get("example_value")
    if name_of(node.target) in _WRITES:
        return value is None or _has_few_elements(value)
    record = operator_record(node.target)
    is_plain = only_computes(node) and not (record is not None and record.is_uninitialised)
    return is_plain and _has_few_elements(value)


def _has_few_elements(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(_has_few_elements(item) for item in value)
    if not isinstance(value, torch.Tensor):
        return isinstance(value, (bool, int, float, torch.Size))
    return is_small(value, MOST_ELEMENTS) and not value.requires_grad


def _may_write(node: fx.Node, memory: set[int]) -> bool:
    """Whether a node may write to this memory."""
    if not any(storages(given.meta.get("example_value")) & memory for given in node.all_input_nodes):
        return False
    return node.op == "output" or not only_computes(node)
