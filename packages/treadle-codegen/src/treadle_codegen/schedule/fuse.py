"""Fusion: a Program's steps become nodes, each a Kernel of fused loops or an Extern, in an order that can be executed.

Loops are taken in program order. Each tries to join the kernel that produces what it reads (vertical), then a kernel over
the same space that reads the same buffers, or that makes small reductions as it does (horizontal). A producing kernel that
stands before an unrelated extern is moved behind it when nothing in between needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from treadle_codegen.costs import Costs
from treadle_codegen.ir.attention import multiplies_tiles
from treadle_codegen.ir.loops import Axis, BufferKind, Check, Define, Extern, Loop, Program, View, scans
from treadle_codegen.schedule.access import accumulates, axes_of, loop_reads, step_along, step_reads, step_writes
from treadle_codegen.schedule.axis_order import around_reductions
from treadle_codegen.schedule.kernel import Kernel, join, local_buffer, merge_axes, single
from treadle_codegen.schedule.order import NOTHING, run_time_order
from treadle_codegen.schedule.tiled import why_not_with_small

# Producers are looked for so many times as far back as kernels that read the same: the steps of an optimizer come in rounds over all
# parameters.
_PRODUCER_WINDOWS = 4
_LARGE_REDUCTION = 1 << 19  # points
_SMALL_PART = 16
_LARGE_MATRIX = 1 << 12  # points


@dataclass(slots=True)
class Node:
    """One step of the plan with the buffers it reads and writes."""

    item: Kernel | Extern | Check | Define
    reads: set[str]
    writes: set[str]
    fusable: bool = True
    reasons: dict[str, str] = field(default_factory=dict)  # loop name -> why it did not join this kernel
    choice: Any = None  # what the renderer may choose about the kernel (`tune`); None: its own choice


def fuse(
    program: Program,
    *,
    max_members: int = 48,
    parallel: bool = False,
    max_row_bytes: int = 1 << 18,
    costs: Costs = Costs(),  # noqa: B008
    why_not_local_row: Callable[[Kernel, str], str | None] | None = None,
) -> list[Node]:
    """The program's steps as fused nodes in execution order, kernels finished: locals found, axes merged.

    parallel: several workers share a kernel's outer loop, so that one must remain.
    why_not_local_row: why the target cannot keep a row of that temporary inside the kernel; by default only long rows cannot stay.
    """
    limits = _Limits(max_members, parallel, costs)
    nodes = _Nodes()
    order = run_time_order(program)
    for step in program.steps:
        reads, writes = order.get(step.name, (NOTHING, NOTHING))
        if not isinstance(step, Loop):
            nodes.append(Node(step, step_reads(step) | reads, step_writes(step) | writes, fusable=False))
        elif not _join(nodes, step, reads, limits):
            nodes.append(Node(single(step), step_reads(step) | reads, step_writes(step), fusable=not accumulates(step)))
    return _finish(list(nodes), program, max_row_bytes, why_not_local_row)


class _Nodes(list[Node]):
    """The nodes so far, in order, and the last one that writes each buffer."""

    def __init__(self) -> None:
        super().__init__()
        self._positions: dict[int, int] = {}  # by id
        self._writers: dict[str, Node] = {}

    def append(self, node: Node) -> None:
        self._positions[id(node)] = len(self)
        super().append(node)
        self.note_writes(node)

    def note_writes(self, node: Node) -> None:
        """The node has come here, or writes more."""
        at = self._positions[id(node)]
        for name in node.writes:
            last = self._writers.get(name)
            if last is None or self._positions[id(last)] < at:
                self._writers[name] = node

    def move(self, old: int, new: int) -> None:
        """Move the node at `old` behind that at `new`."""
        self.insert(new, self.pop(old))
        for k in range(old, new + 1):
            self._positions[id(self[k])] = k
        self.note_writes(self[new])

    def last_writer(self, names: Iterable[str]) -> int:
        """The position of the last node that writes one of these, -1 if none does."""
        writers = [writer for name in names if (writer := self._writers.get(name)) is not None]
        return max([self._positions[id(writer)] for writer in writers], default=-1)


@dataclass(frozen=True, slots=True)
class _Limits:
    max_members: int
    parallel: bool
    costs: Costs


def _join(nodes: _Nodes, loop: Loop, symbols: frozenset[str], limits: _Limits) -> bool:
    """Put the loop into the best kernel that takes it; False if it has to stand alone."""
    if accumulates(loop) or multiplies_tiles(loop) or scans(loop):
        return False
    reads, writes = step_reads(loop), step_writes(loop)
    first = max(0, len(nodes) - limits.costs.fusion_window)
    last_dependency = nodes.last_writer(reads | writes | symbols)
    farthest = max(0, len(nodes) - _PRODUCER_WINDOWS * limits.costs.fusion_window)
    producers = [k for k in range(len(nodes) - 1, farthest - 1, -1) if not nodes[k].writes.isdisjoint(reads)]
    independent = range(len(nodes) - 1, max(first, last_dependency + 1) - 1, -1)
    sharers = [k for k in independent if why_not_neighbour(loop, nodes[k].reads & reads) is None]
    if _is_small_reduction(loop, limits.costs):
        kernels = [(k, nodes[k].item) for k in independent if k not in sharers]
        sharers += [
            k
            for k, item in kernels
            if isinstance(item, Kernel) and any(_is_small_reduction(other, limits.costs) for other in item.loops)
        ]
    for k in [*producers, *sharers]:
        node = nodes[k]
        vertical = bool(node.writes & reads)
        reason = why_not_candidate(node, limits.max_members) or why_not_move(nodes, k, last_dependency)
        if reason is None and not vertical and isinstance(node.item, Kernel):
            reason = why_not_same_direction(node.item, loop)
        if reason is None and vertical and isinstance(node.item, Kernel):
            reason = why_not_with_small(node.item, loop, limits.costs.tiled_points)
        if reason is None:
            assert isinstance(node.item, Kernel)
            joining = around_reductions(node.item, loop, limits.costs.reordered_row) if vertical else loop
            joined = join(node.item, joining, shared_only=not vertical, max_row=limits.costs.max_row)
            if isinstance(joined, Kernel):
                reason = why_not_epilogue(joined, vertical=vertical)
                if reason is None and limits.parallel:
                    most = max(_points(node.item.outer), _points(loop.axes))
                    reason = why_not_serial(joined, most, limits.costs)
                if reason is None:
                    node.item = joined
                    node.reads |= reads | symbols
                    node.writes |= writes
                    if k < last_dependency:
                        nodes.move(k, last_dependency)
                    else:
                        nodes.note_writes(node)
                    return True
            else:
                reason = joined
        node.reasons[loop.name] = reason
    return False


def why_not_neighbour(loop: Loop, shared: set[str]) -> str | None:
    """Why a loop gains nothing from standing in an independent kernel that reads the buffers `shared`, too."""
    if not shared:
        return "they read nothing in common"
    if not loop.reduce_axes or _points((*loop.axes, *loop.reduce_axes)) < _LARGE_REDUCTION:
        return None
    # Each large matrix is a stream of its own, and takes registers: 24 matrices times one vector ran at half the speed of 24 kernels.
    walked = {access.buffer: _points(axes_of(loop, access)) for access in loop_reads(loop)}
    most = max((points for buffer, points in walked.items() if buffer in shared), default=0)
    return "what both read is a small part of it" if most * _SMALL_PART <= max(walked.values()) else None


def why_not_same_direction(kernel: Kernel, loop: Loop) -> str | None:
    """Why a reduction should not stand in an independent kernel: one of the two would walk across the rows of what both read.

    Sums over the rows and over the columns of a square matrix have equal axes.
    """
    own = _directions(loop)
    for other in kernel.loops if own else ():
        if any(own[name] is not along for name, along in _directions(other).items() if name in own):
            return "they read a matrix in different directions"
    return None


def _directions(loop: Loop) -> dict[str, bool]:
    """For each large matrix that a reduction reads, whether it walks along its rows: what it adds up are neighbours in memory."""
    if not loop.reduce_axes or not loop.axes or _points((*loop.axes, *loop.reduce_axes)) < _LARGE_MATRIX:
        return {}
    found = {}
    for read in loop_reads(loop):
        along, across = step_along(read.index, loop.reduce_axes[-1]), step_along(read.index, loop.axes[-1])
        if isinstance(along, int) and isinstance(across, int) and along and across:
            found[read.buffer] = abs(along) < abs(across)
    return found


def _is_small_reduction(loop: Loop, costs: Costs) -> bool:
    return bool(loop.reduce_axes) and _points((*loop.axes, *loop.reduce_axes)) <= costs.small_reduction


def why_not_candidate(node: Node, max_members: int) -> str | None:
    """Why nothing can join this node."""
    if not node.fusable or not isinstance(node.item, Kernel):
        return "an extern, or a loop that changes what others wrote"
    if len(node.item.loops) >= max_members:
        return "the kernel has as many loops as allowed"
    return None


def why_not_move(nodes: list[Node], k: int, last_dependency: int) -> str | None:
    """Why node `k` cannot be executed after `last_dependency`."""
    for later in nodes[k + 1 : last_dependency + 1]:
        if later.reads & nodes[k].writes or later.writes & nodes[k].writes:
            return "a step in between needs the kernel's results"
        if later.writes & nodes[k].reads:
            return "a step in between overwrites what the kernel reads"
    return None


def why_not_epilogue(joined: Kernel, *, vertical: bool) -> str | None:
    """Why a loop should not run on the tiles of the matrix product with which the kernel begins; None for any other kernel."""
    if not multiplies_tiles(joined.loops[0]):
        return None
    if not vertical:
        return "it needs nothing of the matrix product"
    if any(section.axes for section in joined.sections[1:]):
        return "it is no function of single elements of the matrix product"
    return None


def why_not_serial(joined: Kernel, alone: int, costs: Costs) -> str | None:
    """Why a kernel and a loop should not be joined when several workers could share the work; `alone`: the more independent
    points that one of the two has for itself."""
    if _points(joined.outer) >= min(costs.min_parallel, alone):
        return None
    for section in joined.sections:
        if _points(section.axes) > costs.max_serial:
            return "too few shared outer points are left to distribute over workers"
    return None


def _points(axes: Sequence[Axis]) -> int:
    """How many points axes span; many where that is not known."""
    total = 1
    for axis in axes:
        total *= axis.extent if isinstance(axis.extent, int) else 1 << 30
    return total


def _finish(
    nodes: list[Node],
    program: Program,
    max_row_bytes: int,
    why_not_local_row: Callable[[Kernel, str], str | None] | None,
) -> list[Node]:
    """Find the temporaries that stay inside a kernel, and simplify the kernels' loop nests."""
    touching: dict[str, int] = {}
    for node in nodes:
        for name in node.reads | node.writes:
            touching[name] = touching.get(name, 0) + 1
    kept = {v.buffer for v in program.outputs if isinstance(v, View)}
    for node in nodes:
        if not isinstance(node.item, Kernel):
            continue
        kernel = node.item
        for name in sorted(node.writes):
            if program.buffers[name].kind is not BufferKind.TEMP or name in kept:
                continue
            if touching[name] > 1:
                continue
            local = local_buffer(kernel, name, max_row_bytes // program.buffers[name].dtype.itemsize)
            if local is not None and local.is_row and why_not_local_row and why_not_local_row(kernel, name) is not None:
                continue
            if local is not None:
                kernel.locals[name] = local
        node.item = merge_axes(kernel)
        inside_only = {name for name, local in kernel.locals.items() if local.most is None}
        node.writes -= inside_only
        node.reads -= inside_only
    return nodes
