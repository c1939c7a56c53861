"""A program after scheduling: fused nodes, segments of kernels, slots of the table, and how long buffers live."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treadle_codegen.host.number_groups import NumberRun, number_runs
from treadle_codegen.ir.loops import BufferKind, Extern, Program, View, symbols_of
from treadle_codegen.schedule.fuse import Node
from treadle_codegen.schedule.gather_numbers import is_number_step
from treadle_codegen.schedule.kernel import Kernel
from treadle_codegen.targets.constants import share_constants
from treadle_codegen.targets.renderer import RenderedKernel, Renderer, Segment
from treadle_codegen.targets.table_slots import slot_key
from treadle_shapes.expr import IntLike
from treadle_shapes.layouts import nested_extent, same


@dataclass(slots=True)
class ExecutionPlan:
    """A program after scheduling. `segment_at`: the segment whose first node is the one at that position; `ends`: where the segments
    that begin at these positions end; `slots`: where each buffer and number that kernels take stands in the table, from 1 on (slot 0
    is the target's own)."""

    program: Program
    nodes: list[Node]
    segments: list[Segment]
    segment_at: dict[int, Segment]
    ends: dict[int, int]
    slots: dict[str, int]

    def covered(self) -> list[int]:
        """The positions of the nodes that segments do the work of."""
        return [k for at in sorted(self.segment_at) for k in range(at, self.ends[at])]


def make_plan(program: Program, nodes: Sequence[Node], renderer: Renderer) -> ExecutionPlan:
    """Render the kernels, group runs of them into segments, and number all that they take."""
    found = {k: (node.item, node.choice) for k, node in enumerate(nodes) if isinstance(node.item, Kernel)}
    if renderer.shares_constants:
        shared = share_constants(list(found.values()), program)
        found = {k: (kernel, choice) for (k, (_, choice)), kernel in zip(found.items(), shared, strict=True)}
    kernels = {k: renderer.render_kernel(kernel, program, choice) for k, (kernel, choice) in found.items()}
    numbers = {run.first: run for run in number_runs(program, nodes, kernels, renderer)}
    segments: list[Segment] = []
    segment_at: dict[int, Segment] = {}
    ends: dict[int, int] = {}
    start, end = 0, 0
    run: list[RenderedKernel] = []
    last: NumberRun | None = None  # ends the segment under construction: the host looks for doubts before it goes on
    for k, node in enumerate([*nodes, None]):
        if k < end and k not in kernels:
            continue
        closed = node is None or last is not None or not (k in kernels or k in numbers)
        if node is not None and not node.writes.isdisjoint(program.in_place):
            # The host looks for errors before an input is written.
            closed = closed or any(kernel.checks_bounds for kernel in run)
        if run and closed:
            segment = Segment(f"segment_{len(segments)}", tuple(run), tuple(last.groups) if last else ())
            segments.append(segment)
            segment_at[start], ends[start] = segment, end
            run, last = [], None
        if node is None or not (k in kernels or k in numbers):
            continue
        start = start if run else k
        last = numbers.get(k)
        run += [kernels[k]] if last is None else last.kernels
        end = k + 1 if last is None else last.end
    return ExecutionPlan(program, list(nodes), segments, segment_at, ends, _slots(program, segments))


def _slots(program: Program, segments: Sequence[Segment]) -> dict[str, int]:
    known = {*program.size_symbols, *program.bound_symbols}
    slots: dict[str, int] = {}
    for segment in segments:
        for kernel in segment.kernels:
            if unknown := symbols_of(kernel.numbers) - known:
                raise ValueError(f"{kernel.label} takes {unknown}, which nothing defines")
            for name in (*kernel.buffers, *map(slot_key, (*kernel.numbers, *kernel.results))):
                slots.setdefault(program.in_place.get(name, name), len(slots) + 1)
    return slots | {name: slots[updated] for name, updated in program.in_place.items() if updated in slots}


def lifetimes(plan: ExecutionPlan) -> dict[str, tuple[int, int]]:
    """First and last node that touches each temporary with a place in the arena.

    Left out are temporaries that a functional extern returns, that are outputs, or whose sizes are known only during the call.
    """
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
    """The last node that touches each temporary that is not an output."""
    returned = {v.buffer for v in plan.program.outputs if isinstance(v, View)}
    uses: dict[str, int] = {}
    for k, node in enumerate(plan.nodes):
        for name in node.reads | node.writes:
            buffer = plan.program.buffers.get(name)
            if buffer is not None and buffer.kind is BufferKind.TEMP and name not in returned:
                uses[name] = k
    return uses


def returned_layouts(plan: ExecutionPlan) -> dict[str, View]:
    """The buffers that are allocated as they are returned, and how.

        sum over the rows of 4 x 8 -> buffer (1, 8) -> returned as (8,)        allocated as (8,): kernels see memory alone

    No operator takes these, and the view is of all their memory.
    """
    late = frozenset(plan.program.bound_symbols)
    in_externs = {name for n in plan.nodes if isinstance(n.item, Extern) for name in n.reads | n.writes}
    found: dict[str, View] = {}
    for out in plan.program.outputs:
        if not isinstance(out, View) or out.offset != 0 or out.buffer in in_externs or out.buffer in found:
            continue
        buffer = plan.program.buffers[out.buffer]
        is_made = buffer.kind in (BufferKind.TEMP, BufferKind.OUTPUT) and buffer.name not in plan.program.in_place
        if not is_made or buffer.opaque or not late.isdisjoint(symbols_of((out.shape, out.strides))):
            continue
        whole, part = (_block(layout.shape, layout.strides) for layout in (buffer, out))
        if whole is not None and part is not None and same(whole, part):
            found[out.buffer] = out
    return found


def _block(shape: Sequence[IntLike], strides: Sequence[IntLike]) -> IntLike | None:
    """The number of elements of a layout without gaps; None of others."""
    return nested_extent((stride, size) for size, stride in zip(shape, strides, strict=True) if size != 1)


def verify_plan(plan: ExecutionPlan) -> list[str]:
    """All violations of the contract of an execution plan; empty for a valid one.

    - Segments hold the kernels of the nodes, each once and in order, and every segment starts at its first kernel's node.
    - Slots are distinct and count from 1; every buffer and number that a kernel takes has one. An update in place has its input's.
    - A buffer with a place in the arena is a temporary, and no node before its first or behind its last touches it.
    """
    problems = []
    kernels = [k for k, node in enumerate(plan.nodes) if isinstance(node.item, Kernel)]
    covered = plan.covered()
    if kernels != [k for k in covered if not is_number_step(plan.nodes[k].item)]:
        problems.append(f"kernels are at nodes {kernels}, the segments cover {covered}")
    if [plan.segment_at[at] for at in sorted(plan.segment_at)] != plan.segments:
        problems.append("the segments stand in another order than their nodes")
    if sorted(set(plan.slots.values())) != list(
        range(1, len(plan.slots) - sum(name in plan.slots for name in plan.program.in_place) + 1)
    ):
        problems.append(f"slots {sorted(plan.slots.values())} are not 1 to {len(plan.slots)}")
    for segment in plan.segments:
        for kernel in segment.kernels:
            taken = (*kernel.buffers, *map(slot_key, kernel.numbers))
            problems += [f"{kernel.label} takes {name}, which has no slot" for name in taken if name not in plan.slots]
    for name, (first, last) in lifetimes(plan).items():
        if plan.program.buffers[name].kind is not BufferKind.TEMP:
            problems.append(f"{name} has a place in the arena and is no temporary")
        for k, node in enumerate(plan.nodes):
            if name in node.reads | node.writes and not first <= k <= last:
                problems.append(f"{name} lives from node {first} to {last}, and node {k} touches it")
    return problems
