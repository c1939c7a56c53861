"""The contract of fusion: what every list of nodes must obey, and the list of all violations.

A list of nodes is a valid schedule of a program when

- every step of the program stands in it once: a loop, by its name, in one section of one kernel; any other step as a node;
- dependent steps keep their order: where one writes what the other reads or writes (a buffer, or a number known only at
  run time), the earlier one stands in an earlier node, or before the other in the same kernel;
- a node's `reads` and `writes` name everything that its steps touch, buffers that stay inside the kernel aside;

and every kernel among them is legal:

- its sections hold its loops, each once, and a loop's axes are the kernel's outer axes and then the axes of its section;
- a loop runs over as many points as it did in the program;
- within a section, a loop reads what another one wrote only at the element that was written at the same point, and nothing
  that another one reduces there; a later section reads only what was written at the same outer point;
- a buffer that stays inside the kernel is a temporary, no output, and touched by no other node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from treadle_codegen.ir.loops import Axis, BufferKind, Loop, Program, View
from treadle_codegen.schedule.access import loop_reads, loop_writes, split_index, step_reads, step_writes
from treadle_codegen.schedule.fuse import Node
from treadle_codegen.schedule.kernel import Kernel, section_axes
from treadle_codegen.schedule.order import NOTHING, run_time_order
from treadle_shapes.layouts import product


def verify_schedule(program: Program, nodes: Sequence[Node]) -> list[str]:
    """All violations of the rules above; empty for a valid schedule."""
    places: dict[str, tuple[int, int]] = {}
    problems = list(_each_step_once(program, nodes, places))
    if not problems:
        problems += _dependencies(program, places)
        problems += _node_sets(program, nodes)
    originals = {step.name: step for step in program.steps if isinstance(step, Loop)}
    for node in nodes:
        if isinstance(node.item, Kernel):
            problems += [f"{node.item.name}: {problem}" for problem in _kernel(node.item, originals)]
            problems += [f"{node.item.name}: {problem}" for problem in _locals(node, nodes, program)]
    return problems


def _each_step_once(program: Program, nodes: Sequence[Node], places: dict[str, tuple[int, int]]) -> Iterator[str]:
    """Fills `places`: (node, position in the kernel) of each step."""
    for k, node in enumerate(nodes):
        items: Sequence[Any] = node.item.loops if isinstance(node.item, Kernel) else [node.item]
        for position, step in enumerate(items):
            if step.name in places:
                yield f"{step.name} stands in the schedule twice"
            places[step.name] = (k, position)
    names = {step.name for step in program.steps}
    yield from (f"{name} is missing" for name in sorted(names - places.keys()))
    yield from (f"{name} is no step of the program" for name in sorted(places.keys() - names))


def _dependencies(program: Program, places: dict[str, tuple[int, int]]) -> Iterator[str]:
    order = run_time_order(program)
    written: dict[str, list[str]] = {}
    read: dict[str, list[str]] = {}
    for step in program.steps:
        numbers_read, numbers_written = order.get(step.name, (NOTHING, NOTHING))
        reads, writes = step_reads(step) | numbers_read, {n for n in step_writes(step) if n} | numbers_written
        before = {other for name in reads | writes for other in written.get(name, ())}
        before |= {other for name in writes for other in read.get(name, ()) if not name.startswith("$")}
        for other in sorted(before - {step.name}):
            if places[other] >= places[step.name]:
                yield f"{step.name} depends on {other}, which runs later"
        for name in reads:
            read.setdefault(name, []).append(step.name)
        for name in writes:
            written.setdefault(name, []).append(step.name)


def _node_sets(program: Program, nodes: Sequence[Node]) -> Iterator[str]:
    for node in nodes:
        kernel = node.item if isinstance(node.item, Kernel) else None
        steps: Sequence[Any] = kernel.loops if kernel is not None else [node.item]
        inside = set() if kernel is None else {n for n, local in kernel.locals.items() if local.most is None}
        reads = set().union(*map(step_reads, steps)) - inside
        writes = set().union(*map(step_writes, steps)) - inside - {""}
        for name in sorted(reads - node.reads):
            yield f"{steps[0].name}: the node does not say that it reads {name}"
        for name in sorted(writes - node.writes):
            yield f"{steps[0].name}: the node does not say that it writes {name}"


def _kernel(kernel: Kernel, originals: dict[str, Loop]) -> Iterator[str]:
    members = [loop for section in kernel.sections for loop in section.members]
    if sorted(map(id, members)) != sorted(map(id, kernel.loops)):
        yield f"its sections hold {[loop.name for loop in members]}, not each of its loops once"
    prefix = len(kernel.outer)
    for section in kernel.sections:
        for loop in section.members:
            if loop.axes[:prefix] != kernel.outer or section_axes(loop, prefix) != section.axes:
                yield f"{loop.name} has other axes than its section"
            original = originals.get(loop.name)
            if original is not None and not (
                _same_count(original.axes, loop.axes) and _same_count(original.reduce_axes, loop.reduce_axes)
            ):
                yield f"{loop.name} runs over another number of points than in the program"
    yield from _flow(kernel)


def _same_count(a: Sequence[Axis], b: Sequence[Axis]) -> bool:
    mine, theirs = product([axis.extent for axis in a]), product([axis.extent for axis in b])
    return mine == theirs or not (isinstance(mine, int) and isinstance(theirs, int))


def _flow(kernel: Kernel) -> Iterator[str]:
    """What flows from loop to loop inside the kernel."""
    outer = [axis.symbol for axis in kernel.outer]
    writers: dict[str, tuple[int, Loop, Any]] = {}
    for position, section in enumerate(kernel.sections):
        for loop in section.members:
            for read in loop_reads(loop):
                if read.buffer not in writers:
                    continue
                at, writer, index = writers[read.buffer]
                if read.index is None or index is None:
                    yield f"{loop.name} reads {read.buffer}, which the kernel writes, at a place that is data"
                elif at == position:
                    if writer.reduce_axes:
                        yield f"{loop.name} reads {read.buffer}, which its own section still reduces"
                    elif read.index != index:
                        yield f"{loop.name} reads {read.buffer} at another point than its section writes it"
                else:
                    wanted, given = split_index(read.index, outer), split_index(index, outer)
                    if wanted is None or given is None or wanted[0] != given[0]:
                        yield f"{loop.name} reads {read.buffer} at another outer point than it is written"
            for write in loop_writes(loop):
                writers[write.buffer] = (position, loop, write.index)


def _locals(node: Node, nodes: Sequence[Node], program: Program) -> Iterator[str]:
    assert isinstance(node.item, Kernel)
    outputs = {out.buffer for out in program.outputs if isinstance(out, View)}
    for name, local in node.item.locals.items():
        if program.buffers[name].kind is not BufferKind.TEMP or name in outputs:
            yield f"{name} stays inside, but is no temporary"
        if any(name in other.reads | other.writes for other in nodes if other is not node):
            yield f"{name} stays inside, but another node touches it"
        if local.most is None and not isinstance(local.length, int):
            yield f"{name} stays inside with a length that is known only at run time"
