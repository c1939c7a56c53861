"""A program after scheduling, and how long its buffers live."""

from __future__ import annotations

from dataclasses import dataclass

from treadle_codegen.codegen.kernel import Segment
from treadle_codegen.ir.loops import BufferKind, Extern, Program, View, symbols_of
from treadle_codegen.schedule.fuse import Node


@dataclass(slots=True)
class ExecutionPlan:
    """A program after scheduling: fused nodes, the segments of its kernels by position of their first node, table slots."""

    program: Program
    nodes: list[Node]
    segments: list[Segment]
    segment_at: dict[int, Segment]  # node position -> segment starting there
    slots: dict[str, int]


def lifetimes(plan: ExecutionPlan) -> dict[str, tuple[int, int]]:
    """First and last node that touches each temporary that can be planned: not made by a functional extern, not returned,
    of a size known when the call starts."""
    late = frozenset(plan.program.bound_symbols)
    returned = {v.buffer for v in plan.program.outputs if isinstance(v, View)}
    made_by_ops = {
        name for n in plan.nodes if isinstance(n.item, Extern) and not n.item.out_variant for name in n.item.outputs
    }
    spans: dict[str, tuple[int, int]] = {}
    for k, node in enumerate(plan.nodes):
        for name in node.reads | node.writes:
            buffer = plan.program.buffers.get(name)
            if buffer is None or buffer.kind is not BufferKind.TEMP or name in returned or name in made_by_ops:
                continue
            if late and not late.isdisjoint(symbols_of((buffer.shape, buffer.strides))):
                continue
            spans[name] = (min(spans[name][0], k) if name in spans else k, k)
    return spans


def last_uses(plan: ExecutionPlan) -> dict[str, int]:
    """The last node that touches each temporary that is not planned ahead and not returned."""
    returned = {v.buffer for v in plan.program.outputs if isinstance(v, View)}
    uses: dict[str, int] = {}
    for k, node in enumerate(plan.nodes):
        for name in node.reads | node.writes:
            buffer = plan.program.buffers.get(name)
            if buffer is not None and buffer.kind is BufferKind.TEMP and name not in returned:
                uses[name] = k
    return uses
