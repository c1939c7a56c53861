"""Operators of programs that may draw from Python's or NumPy's generators when the graph runs, which a trace cannot foresee.

scale = random.random()          # moves the generator on behind the graph
y = torch.ops.mine.noise(x)      # draws from it inside the graph: the graph breaks in front
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.errors import Unsupported

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_NAMESPACES = ("aten", "prims", "prim", "quantized", "mkldnn", "onednn", "torchvision", "treadle")
_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)


def may_draw(target: Any) -> bool:
    """Whether a function that the graph calls may run code of the program."""
    if isinstance(target, _OPERATORS):
        return str(target).partition(".")[0] not in _NAMESPACES
    root = (getattr(target, "__module__", None) or "").partition(".")[0]
    return isinstance(target, types.FunctionType) and root != "torch" and not root.startswith("treadle_")


def refuse_behind_draws(tx: TraceContext, target: Any) -> None:
    """Break in front of such a call where a generator has not been moved on yet."""
    if may_draw(target) and any(getattr(function, "moves_generator", False) for function, _ in tx.mutations.outputs):
        raise Unsupported("random-number", f"{target}, which may draw numbers, behind one that is drawn")


def refuse_behind_operators(tx: TraceContext, what: str) -> None:
    """Break in front of a draw where the graph has such a call."""
    if any(node.op == "call_function" and may_draw(node.target) for node in tx.graph.nodes):
        raise Unsupported("random-number", f"{what} behind an operator that may draw numbers")
