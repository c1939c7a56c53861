"""Elements of tensors that the program makes from constants: `torch.arange(2, 5).tolist()` is a constant of the trace."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from treadle_shapes.torch import operator as operator_record
from treadle_tracer.values.call_effects import only_computes

if TYPE_CHECKING:
    from torch import fx

    from treadle_tracer.values.value import TraceContext

_MOST_ELEMENTS = 1024
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
    try:
        with torch.no_grad():
            return _computed(calls)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return None  # the program raises it where it makes the call


def _computed(calls: list[fx.Node]) -> Any:
    """What the last of the calls gives."""
    found: dict[fx.Node, Any] = {}
    for node in calls:
        args, kwargs = _real(found, node.args), _real(found, dict(node.kwargs))
        if node.op == "call_method":
            found[node] = getattr(args[0], str(node.target))(*args[1:], **kwargs)
        else:
            found[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    return found[calls[-1]]


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
    if node.op not in ("call_function", "call_method") or not _is_small(node.meta.get("example_value")):
        return False
    record = operator_record(node.target)
    return only_computes(node) and not (record is not None and record.is_uninitialised)


def _is_small(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(_is_small(item) for item in value)
    if not isinstance(value, torch.Tensor):
        return isinstance(value, (bool, int, float, torch.Size))
    plain = value.device.type == "cpu" and value.layout is torch.strided and not value.requires_grad
    return plain and all(isinstance(n, int) for n in value.shape) and value.numel() <= _MOST_ELEMENTS


def _may_be_written(calls: list[fx.Node], nodes: Iterable[fx.Node]) -> bool:
    """Whether a call of the graph may have written to one of the tensors."""
    memory = {key for node in calls for key in _memory(node)}
    known = set(calls)
    for node in nodes:
        if node in known or not any(key in memory for given in node.all_input_nodes for key in _memory(given)):
            continue
        if not only_computes(node):
            return True
    return False


def _memory(node: fx.Node) -> list[int]:
    value = node.meta.get("example_value")
    tensors = value if isinstance(value, (tuple, list)) else [value]
    return [t.untyped_storage()._cdata for t in tensors if isinstance(t, torch.Tensor) and t.layout is torch.strided]


def _real(found: dict[fx.Node, Any], given: Any) -> Any:
    from torch import fx

    return fx.map_arg(given, lambda node: found[node])
