"""Small updates of inputs that are known before the call can no longer raise: stored into the input at the end, by the graph itself.

    s1 = s + 1; u = item(s1); check(u)          the caller copies s1 into s
==> t = s + 1; u = item(t); check(u); s1 = t    and the last step writes s (`schedule.in_place`)

The step count of an optimizer is such an update, for each of hundreds of parameters: an output less to allocate and to copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from treadle_codegen.ir.loops import Axis, BufferKind, Instr, Load, Loop, Program, Store, View
from treadle_codegen.lower.indexing import axis_symbol, product
from treadle_codegen.schedule.fuse import Node
from treadle_codegen.schedule.in_place import raising_nodes, same_memory, updates_in_place
from treadle_codegen.schedule.kernel import Kernel, merge_axes, single

SMALL_UPDATE = 64  # the caller copies many tensors in one call, so that larger copies gain nothing


def store_updates_late(program: Program, nodes: Sequence[Node]) -> list[Node]:
    """The nodes with a copy at the end for every such update. The program gets the steps and the buffers of the copies."""
    raising = raising_nodes(program, nodes)
    if not raising or not program.updates:
        return list(nodes)
    returned = [out.buffer for out in program.outputs if isinstance(out, View)]
    early = {name for node in nodes[: raising[-1]] if isinstance(node.item, Kernel) for name in node.writes}
    done = updates_in_place(program, nodes)
    copies: list[Node] = []
    renamed: dict[str, str] = {}
    for output, updated in program.updates.items():
        if output not in early or output in done or returned.count(output) != 1 or updated in returned:
            continue
        if list(program.updates.values()).count(updated) > 1 or not _is_small(program, output, updated):
            continue
        copies.append(_copy(program, output))
        (renamed[output],) = copies[-1].writes
    if not renamed:
        return list(nodes)
    program.updates = {renamed.get(output, output): updated for output, updated in program.updates.items()}
    program.outputs = tuple(
        [replace(o, buffer=renamed.get(o.buffer, o.buffer)) if isinstance(o, View) else o for o in program.outputs]
    )
    return [*nodes, *copies]


def _is_small(program: Program, output: str, updated: str) -> bool:
    elements = product(program.buffers[output].shape)
    return (
        same_memory(program.buffers[output], program.buffers[updated])
        and not program.buffers[output].dtype.is_complex
        and isinstance(elements, int)
        and elements <= SMALL_UPDATE
    )


def _copy(program: Program, output: str) -> Node:
    """A node that copies an output into a new one, which takes its place; it is a temporary from now on."""
    old = program.buffers[output]
    name = _unused(program, f"{output}_stored")
    axes = [(Axis(axis_symbol(f"i{d}", n), n), s) for d, (n, s) in enumerate(zip(old.shape, old.strides, strict=True))]
    index = sum([axis.symbol * stride for axis, stride in axes], start=0)
    body = (
        Instr("load", (), old.dtype, Load(output, index)),
        Instr("store", (0,), old.dtype, Store(name, index)),
    )
    loop = Loop(f"loop_{name}", tuple([axis for axis, _ in axes]), (), body)
    program.buffers[name] = replace(old, name=name)
    program.buffers[output] = replace(old, kind=BufferKind.TEMP)
    program.steps.append(loop)
    return Node(merge_axes(single(loop)), {output}, {name}, fusable=False)


def _unused(program: Program, name: str) -> str:
    while name in program.buffers:
        name += "_"
    return name
