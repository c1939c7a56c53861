"""What a traced graph writes to, and whether a run that fails half-way leaves traces outside the graph."""

from __future__ import annotations

import torch

from treadle_shapes.torch import Kind, Raises, operator

from ..values.call_effects import name_of, storages, writes_to

_INDEXED = frozenset({Kind.GATHER, Kind.SCATTER})
# Operators of these kinds raise for no element unless their record says so. The other kinds have composite operators, whose records do
# not say what the operators behind them raise.
_INDIFFERENT_TO_VALUES = frozenset(
    {
        Kind.VIEW,
        Kind.POINTWISE,
        Kind.REDUCTION,
        Kind.SCAN,
        Kind.MATMUL,
        Kind.CONVOLUTION,
        Kind.ATTENTION,
        Kind.NORMALISATION,
        Kind.POOLING,
        Kind.RESAMPLING,
        Kind.SORT,
        Kind.CREATION,
        Kind.COPY,
        Kind.FFT,
        Kind.QUERY,
    }
)
# Functions without a record that draw no random numbers. The derivative of what a graph records draws none: a graph whose backward pass
# does is not traced (`output.subgraph`).
_DRAWING_NOTHING = frozenset({torch.autograd.grad, torch._C._set_grad_enabled})


def why_not_deoptimise(gm: torch.fx.GraphModule) -> str | None:
    """Why a graph that fails half-way may have left traces outside; None when it cannot have.

    Writes to tensors that the graph itself has made do not count. A view shares the storage of its base, also among fake tensors.
    """
    outside: set[int] = set()
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            outside |= storages(node.meta.get("example_value"))
        elif node.op != "output" and writes_to(node, outside):
            return f"the graph calls {name_of(node.target)}, which may write to an outside tensor"
    return None


def draws_random_numbers(gm: torch.fx.GraphModule) -> bool:
    """Whether a call of the graph may move a random number generator on. Functions without a record may."""
    records = [operator(node.target) for node in _calls(gm) if node.target not in _DRAWING_NOTHING]
    return any(record is None or record.is_random for record in records)


def may_raise_by_value(gm: torch.fx.GraphModule) -> bool:
    """Whether a call of the graph may raise for some elements of its arguments. Functions without a record may."""
    return any(map(_may_raise_by_value, _calls(gm)))


def _calls(gm: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in gm.graph.nodes if node.op[:5] == "call_" and node.target is not getattr]


def _may_raise_by_value(node: torch.fx.Node) -> bool:
    record = operator(node.target)
    if record is None or record.raises is not Raises.NEVER:
        return True
    if record.kind in _INDEXED:
        # `x[0]` and `x[positions]` have one record; only positions known at run time may be out of range
        return any(map(_may_be_positions, node.all_input_nodes))
    return record.kind not in _INDIFFERENT_TO_VALUES


def _may_be_positions(node: torch.fx.Node) -> bool:
    value = node.meta.get("example_value")
    return not (isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex()))
