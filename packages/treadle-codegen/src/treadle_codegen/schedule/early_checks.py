"""Positions that are data are checked before the first input is written, where they are known by then.

    keys[position] = k; ...; values[other] = v      a call whose `other` is out of range must leave `keys` as it was, so that both are
                                                    written to memory of their own, and copied into the inputs at the end

==> check position; check other; keys[position] = k; ...; values[other] = v      both in the inputs' memory (`schedule.in_place`)

A cache of keys and values for each layer of a model is such a row of updates: large, and written in a few places per call.

Steps that do not need what is written come before the first update, too: a replay buffer gets a row and is sampled at random positions,
which are drawn, and checked, before the row is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from treadle_codegen.ir.loops import BufferKind, Instr, IntLike, Loop, Program, load_of, step_symbols
from treadle_codegen.ir.ops import OPS
from treadle_codegen.ir.product import varies_along
from treadle_codegen.lower.indexing import product
from treadle_codegen.schedule.access import axis_ranges, step_reads, step_writes
from treadle_codegen.schedule.fuse import Node
from treadle_codegen.schedule.in_place import updates_in_place
from treadle_codegen.schedule.kernel import Kernel, Section, merge_axes, single
from treadle_codegen.schedule.late_updates import SMALL_UPDATE
from treadle_codegen.schedule.positions import checks_positions, positions_to_check

_READ_ONLY = (BufferKind.INPUT, BufferKind.STATIC, BufferKind.CONSTANT)


def check_positions_early(program: Program, nodes: Sequence[Node]) -> Sequence[Node]:
    """The nodes with such checks in front of the first update, if more updates happen in place then. The program gets the steps."""
    done = updates_in_place(program, nodes)
    wanted = {name for name in program.updates if name not in done and not _is_small(program, name)}
    if not wanted:
        return nodes
    original, nodes = nodes, _updates_last(nodes, wanted)
    first = _first_update(nodes, wanted)
    known = _written_before(program, nodes, first)
    numbers = frozenset(program.size_symbols)
    sizes = [product(program.buffers[name].shape) for name in wanted]
    copied = sum([n for n in sizes if isinstance(n, int)])
    checks: dict[object, Loop] = {}
    later: list[Node] = []
    for node in nodes[first:]:
        found = _checks_of(node, known, copied)
        if found is not None and not any(step_symbols(loop) - numbers for loop in found):
            for loop in found:
                checks.setdefault((loop.axes, loop.body), loop)
            later.append(_checked(node))
        else:
            later.append(node)
    if not checks and nodes is original:
        return original
    loops = [replace(loop, name=f"check_positions_{k}") for k, loop in enumerate(checks.values())]
    early = [Node(merge_axes(single(loop)), step_reads(loop), set(), fusable=False) for loop in loops]
    result = [*nodes[:first], *early, *later]
    if len(updates_in_place(program, result)) <= len(done):
        return original
    for loop in loops:
        program.steps.insert(_place_of(program, loop), loop)
    return result


def _first_update(nodes: Sequence[Node], wanted: set[str]) -> int:
    """The position of the first node that writes one of the outputs."""
    return next((k for k, node in enumerate(nodes) if not wanted.isdisjoint(node.writes)), len(nodes))


def _updates_last(nodes: Sequence[Node], wanted: set[str]) -> Sequence[Node]:
    """The nodes with those that need no update in front of the first one. Nodes that are no kernels keep their order: some have effects."""
    first = _first_update(nodes, wanted)
    early, late = list(nodes[:first]), list[Node]()
    reads, writes = set[str](), set[str]()  # of the late ones
    is_call_late = False
    for node in nodes[first:]:
        is_call = not isinstance(node.item, Kernel)
        is_apart = (
            writes.isdisjoint(node.reads)
            and writes.isdisjoint(node.writes)
            and reads.isdisjoint(node.writes)
            and wanted.isdisjoint(node.writes)
        )
        if is_apart and not (is_call and is_call_late):
            early.append(node)
            continue
        late.append(node)
        reads |= node.reads
        writes |= node.writes
        is_call_late = is_call_late or is_call
    return nodes if len(early) == first else [*early, *late]


def _is_small(program: Program, name: str) -> bool:
    elements = product(program.buffers[name].shape)
    return isinstance(elements, int) and elements <= SMALL_UPDATE


def _written_before(program: Program, nodes: Sequence[Node], first: int) -> frozenset[str]:
    """The buffers in memory that have their values before a node, and keep them until an update at the end."""
    later = {name for node in nodes[first:] for name in node.writes}
    early = {name for node in nodes[:first] for name in node.writes}
    inputs = {name for name, buffer in program.buffers.items() if buffer.kind in _READ_ONLY}
    return frozenset(inputs | early - later)


def _checks_of(node: Node, known: frozenset[str], copied: int) -> list[Loop] | None:
    """Loops that check all positions of a node's loops beforehand; None where there is nothing to check, or something is not known.

    copied: how many elements are copied where the updates are not in place.
    """
    if not isinstance(node.item, Kernel) or not any(map(checks_positions, node.item.loops)):
        return None
    found: list[Loop] = []
    for loop in node.item.loops:
        positions = positions_to_check(loop, axis_ranges((*loop.axes, *loop.reduce_axes)))
        checks = [_check(loop, k, size, known) for k, size in positions]
        if not _are_few(loop, checks, copied):
            return None
        found += [check for check in checks if check is not None]
    return found


def _are_few(loop: Loop, checks: Iterable[Loop | None], copied: int) -> bool:
    """Whether all positions can be checked beforehand by reading less than the loop itself reads and writes, or than is copied else."""
    points = product([axis.extent for axis in (*loop.axes, *loop.reduce_axes)])
    for check in checks:
        if check is None:
            return False
        own = product([axis.extent for axis in check.axes])
        few = isinstance(own, int) and (4 * own <= copied or (isinstance(points, int) and 4 * own <= points))
        if not few and len(check.axes) >= len(loop.axes) + len(loop.reduce_axes) > 0:
            return False
    return True


def _check(loop: Loop, position: int, size: IntLike, known: frozenset[str]) -> Loop | None:
    """A loop that checks the value of one instruction; None where it depends on more than known buffers."""
    needed = sorted(_needed(loop.body, position))
    body = [loop.body[k] for k in needed]
    loads = [load for load in map(load_of, body) if load is not None]
    if not all(map(_may_come_early, body)) or not known.issuperset(buffer for buffer, _ in loads):
        return None
    places = {k: at for at, k in enumerate(needed)}
    moved = [Instr(i.op, tuple([places[a] for a in i.args]), i.dtype, i.attr) for i in body]
    check = Instr("check_position", (places[position],), torch.int64, size)
    symbols = varies_along(loop, position)
    axes = tuple([axis for axis in (*loop.axes, *loop.reduce_axes) if axis.symbol in symbols])
    return Loop("check_positions", axes, (), (*moved, check), loop.origins)


def _needed(body: Sequence[Instr], position: int) -> set[int]:
    """The instructions that the value of one is computed from, itself among them."""
    found = {position}
    for k in range(position, -1, -1):
        if k in found:
            found.update(body[k].args)
    return found


def _may_come_early(instr: Instr) -> bool:
    return OPS[instr.op].pure and instr.op not in ("indirect_load", "reduce", "scan", "scalar")


def _checked(node: Node) -> Node:
    """The node with loops whose positions are known to be in range."""
    assert isinstance(node.item, Kernel)
    kernel = node.item
    marked = {id(loop): replace(loop, is_checked=True) for loop in kernel.loops}
    sections = [Section(s.axes, [marked[id(loop)] for loop in s.members]) for s in kernel.sections]
    loops = [marked[id(loop)] for loop in kernel.loops]
    return replace(node, item=replace(kernel, sections=sections, loops=loops))


def _place_of(program: Program, check: Loop) -> int:
    """The first place among the steps where all that the check reads has been written."""
    reads = step_reads(check)
    writers = [k for k, step in enumerate(program.steps) if not reads.isdisjoint(step_writes(step))]
    return max(writers, default=-1) + 1
