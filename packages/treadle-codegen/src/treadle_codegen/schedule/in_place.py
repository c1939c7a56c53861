"""Inputs that are updated where they are: which outputs may take the memory of the input that they are written back to.

    p -> p - 0.1 * g; the caller copies the result into p      ==>      the kernel writes p itself, and there is nothing to copy

    x[1:3] = 0 makes of x first a copy of it and then writes a part of that      ==>      only the part is written, into x itself

An update keeps memory of its own where the old value is still needed, and where the call may raise after the write: a call that raises
has written nothing that the caller can see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from treadle_codegen.ir.loops import Axis, Buffer, BufferKind, Check, Extern, Loop, Program, View
from treadle_codegen.ir.overlap import loads_of, may_meet
from treadle_codegen.schedule.access import accumulates, loop_reads, loop_writes
from treadle_codegen.schedule.fuse import Node
from treadle_codegen.schedule.kernel import Kernel
from treadle_codegen.schedule.positions import checks_positions
from treadle_shapes.torch import Raises, operator


def updates_in_place(program: Program, nodes: Sequence[Node]) -> dict[str, str]:
    """Output buffer -> input buffer, for every wanted update (`Program.updates`) that may happen in the input's memory."""
    if not program.updates:
        return {}
    raising = raising_nodes(program, nodes)
    returned = [out.buffer for out in program.outputs if isinstance(out, View)]
    touching: dict[str, list[int]] = {}
    for k, node in enumerate(nodes):
        for name in node.reads | node.writes:
            touching.setdefault(name, []).append(k)
    found: dict[str, str] = {}
    for output, updated in program.updates.items():
        writers = [k for k in touching.get(output, ()) if output in nodes[k].writes]
        if len(writers) > 1 and is_copy(nodes[writers[0]], output, updated):
            del writers[0]  # nothing to do where the two are one memory
        elif len(writers) > 1 and not _is_alone(nodes[writers[0]]):
            continue
        if not writers or any(k >= writers[0] for k in raising if k != writers[0] or not checks_first(nodes[k])):
            continue
        if returned.count(output) != 1 or updated in found.values():
            continue
        node = nodes[writers[0]]
        if max(touching.get(updated, [-1])) > writers[0] or not isinstance(node.item, Kernel):
            continue
        if not all(isinstance(nodes[k].item, Kernel) for k in writers):
            continue
        if same_memory(program.buffers[output], program.buffers[updated]) and _reads_first(node.item, output, updated):
            found[output] = updated
    return found


def checks_first(node: Node) -> bool:
    """Whether the node is one loop that writes at positions that are data: then it writes nothing unless all of them are in range."""
    if not _is_alone(node):
        return False
    assert isinstance(node.item, Kernel)
    return any(instr.op == "indirect_store" for instr in node.item.loops[0].body)


def is_copy(node: Node, output: str, updated: str) -> bool:
    """Whether the node does nothing but copy each element of `updated` to the same place of `output`."""
    return _copied(node) == (output, updated)


def _copied(node: Node) -> tuple[str, str] | None:
    """(output, input) of a node that does nothing but copy each element of one to the same place of the other."""
    if not _is_alone(node):
        return None
    assert isinstance(node.item, Kernel)
    body = node.item.loops[0].body
    if [instr.op for instr in body] != ["load", "store"]:
        return None
    load, store = body[0].attr, body[1].attr
    return (store.buffer, load.buffer) if load.index == store.index else None


def _is_alone(node: Node) -> bool:
    return isinstance(node.item, Kernel) and len(node.item.loops) == 1


def without_copies(nodes: Sequence[Node], found: Mapping[str, str]) -> list[Node]:
    """The nodes without copies of an input into the output that is written in its memory."""
    return [node for node in nodes if (copied := _copied(node)) is None or found.get(copied[0]) != copied[1]]


def raising_nodes(program: Program, nodes: Sequence[Node]) -> list[int]:
    """Where the call may raise.

    A kernel on a GPU that finds a position out of range ends the whole CUDA context, as eager's does: no tensor can be read afterwards.
    """
    is_fatal = program.device is not None and program.device.type == "cuda"
    return [k for k, node in enumerate(nodes) if not (is_fatal and isinstance(node.item, Kernel)) and _may_raise(node)]


def _may_raise(node: Node) -> bool:
    if isinstance(node.item, Kernel):
        return any(map(checks_positions, node.item.loops))
    return isinstance(node.item, Check) or (isinstance(node.item, Extern) and _call_may_raise(node.item))


def _call_may_raise(extern: Extern) -> bool:
    """Whether the operator raises for some values of its tensors. What has no record may."""
    if extern.op in _never_raising():
        return False
    record = operator(extern.op)
    return bool(extern.binds) or record is None or record.raises is not Raises.NEVER


@cache
def _never_raising() -> frozenset[Any]:
    """What rewrites put in for linear layers and convolutions, which never raise; it stands in no table of ATen's operators."""
    names = ("_linear_pointwise", "_convolution_pointwise")
    return frozenset(getattr(torch.ops.mkldnn, name).default for name in names if hasattr(torch.ops.mkldnn, name))


def same_memory(output: Buffer, updated: Buffer) -> bool:
    """Whether the two have the same layout, known while compiling."""
    numbers = (*output.shape, *output.strides, output.offset)
    return (
        output.kind is BufferKind.OUTPUT
        and updated.kind in (BufferKind.INPUT, BufferKind.STATIC)
        and not (output.opaque or updated.opaque)
        and output.dtype == updated.dtype
        and numbers == (*updated.shape, *updated.strides, updated.offset)
    )


def _reads_first(kernel: Kernel, output: str, updated: str) -> bool:
    """Whether the kernel reads each element of `updated` at the point where it writes that element of `output`, and before; or reads
    only elements that it does not write."""
    if len(kernel.loops) == 1 and not kernel.loops[0].reduce_axes:
        (loop,) = kernel.loops
        stores = [store for store in loop_writes(loop) if store.buffer == output]
        if len(stores) == 1 and stores[0].index is not None and not _adds(loop):
            loads = loads_of(loop.body[: stores[0].position], updated)
            return not any(may_meet(load, stores[0].index, loop.axes) for load in loads) and not loads_of(
                loop.body[stores[0].position :], updated
            )
    if len(kernel.loops) == 1 and any(instr.op == "indirect_store" for instr in kernel.loops[0].body):
        return not loads_of(kernel.loops[0].body, updated)
    place: tuple[tuple[Axis, ...], int | object] | None = None
    for loop in reversed(kernel.loops):
        for store in loop_writes(loop):
            if store.buffer == output:
                if place is not None or loop.reduce_axes or accumulates(loop) or store.index is None:
                    return False
                place = (loop.axes, store.index)
        reads = [access for access in loop_reads(loop) if access.buffer == updated]
        if not reads:
            continue
        if place is None or loop.reduce_axes or any((loop.axes, read.index) != place for read in reads):
            return False
        if any(read.position > _position_of_store(loop, output) for read in reads):
            return False
    return place is not None


def _adds(loop: Loop) -> bool:
    """Whether the loop adds to what it stores to, or may store there twice."""
    return any(i.op == "indirect_store" or (i.op == "store" and i.attr.mode == "add") for i in loop.body)


def _position_of_store(loop: Loop, output: str) -> int:
    """Where the loop stores into `output`; behind its body if it does not."""
    return next((store.position for store in loop_writes(loop) if store.buffer == output), len(loop.body))


def verify_in_place(program: Program, nodes: Sequence[Node], found: Mapping[str, str]) -> list[str]:
    """All violations of the contract of updates in place; empty for a valid choice.

    - Each was wanted, and no input is updated twice.
    - Nothing that stands behind the write touches the input, and nothing behind it may raise. The write itself may if it checks first.
    """
    problems = [
        f"nobody wants {output} in {name}" for output, name in found.items() if program.updates.get(output) != name
    ]
    if len(set(found.values())) < len(found):
        problems.append("an input is updated twice")
    for output, updated in found.items():
        changing = (k for k, node in enumerate(nodes) if output in node.writes and not is_copy(node, output, updated))
        at = next(changing, len(nodes))
        for node in nodes[at + 1 :]:
            if updated in node.reads | node.writes:
                problems.append(f"{updated} is read after {output} has been written over it")
        if any(k >= at and not (k == at and checks_first(nodes[k])) for k in raising_nodes(program, nodes)):
            problems.append(f"the call may raise after {updated} has been written over")
    return problems
