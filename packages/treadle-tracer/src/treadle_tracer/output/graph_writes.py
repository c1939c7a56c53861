"""What a traced graph writes to, and whether a run that fails half-way leaves traces outside the graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

_WRITING_OPERATORS = frozenset(
    "setitem delitem iadd iand iconcat ifloordiv ilshift imatmul imod imul ior ipow irshift isub itruediv ixor".split()
)
# Functions that write to arguments without saying so in their name.
_HIDDEN_WRITERS = frozenset({"batch_norm", "instance_norm", "embedding_renorm_", "_fused_moving_avg_obs_fq_helper"})


def why_not_deoptimise(gm: torch.fx.GraphModule) -> str | None:
    """Why a graph that failed half-way may have left traces outside, None when it cannot have.

    Writes to tensors that the graph itself has made do not count; a view shares the storage of what it is a view of, also among fakes.
    """
    outside: set[int] = set()
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            outside |= _storages(node)
        elif node.op != "output":
            written = written_arguments(node)
            if any(_storages(argument) & outside or not _storages(argument) for argument in written):
                return f"the graph calls {_name(node)}, which may write to an outside tensor"
    return None


def _name(node: torch.fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def written_arguments(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The arguments a call may write to."""
    name = _name(node)
    if name in _HIDDEN_WRITERS:
        return list(node.all_input_nodes)
    if name.endswith("__"):
        writes = name in ("__setitem__", "__delitem__") or name.strip("_") in _WRITING_OPERATORS
    elif getattr(node.target, "__module__", "") in ("_operator", "operator"):
        writes = name in _WRITING_OPERATORS
    else:
        writes = name.endswith("_") or bool(node.kwargs.get("inplace"))
    if not writes and "out" not in node.kwargs:
        return []
    given = [node.kwargs.get("out"), *(node.args[:1] or [node.kwargs.get("input"), node.kwargs.get("tensor")])]
    return list(_nodes_in(given if writes else given[:1]))


def _nodes_in(value: Any) -> Iterator[torch.fx.Node]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _nodes_in(item)
    elif hasattr(value, "all_input_nodes"):
        yield value


def _storages(node: torch.fx.Node) -> set[int]:
    """Identities of the storages of a node's value; none when the value is not known to be strided tensors."""
    values = node.meta.get("example_value")
    found = set()
    for value in values if isinstance(values, (tuple, list)) else [values]:
        try:
            found.add(value.untyped_storage()._cdata)  # type: ignore[union-attr]
        except (AttributeError, NotImplementedError, RuntimeError):
            continue
    return found
