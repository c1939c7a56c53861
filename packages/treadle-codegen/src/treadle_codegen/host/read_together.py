"""Numbers that are read off neighbouring elements of one tensor, so that the host reads them in one call.

    u0 = item(as_strided(t, (), (), 0))          n0, n1, n2 = as_strided(t, (3, ), (1, ), 0).tolist()
    u1 = item(as_strided(t, (), (), 1))    ==>   u0 = n0
    u2 = item(as_strided(t, (), (), 2))          u1 = n1; u2 = n2

A view and a call of `item` for each number cost several times as much as the list, which `Tensor.tolist` of a program is, too.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from treadle_codegen.ir.loops import Buffer, Extern, View
from treadle_codegen.schedule.fuse import Node
from treadle_codegen.schedule.gather_numbers import READ_NUMBER, is_number_step


@dataclass(frozen=True, slots=True)
class ReadTogether:
    """Elements that are read by one call. view: all of them, in one dimension of static size; places: by node, which of them it reads."""

    view: View
    places: Mapping[int, int]


def reads_together(
    nodes: Sequence[Node], buffers: Mapping[str, Buffer], covered: Container[int]
) -> dict[int, ReadTogether]:
    """By the first node of each group, what it reads. covered: the positions of nodes that kernels do the work of.

    Only checks and computations of numbers stand between the nodes of a group, so that nothing is written in the meantime.
    """
    found: dict[int, ReadTogether] = {}
    groups: dict[str, dict[int, int]] = {}
    for k, node in enumerate([*nodes, None]):
        if node is None or k in covered or not is_number_step(node.item):
            for name, offsets in groups.items():
                group = _group(name, offsets, buffers)
                if group is not None:
                    found[min(offsets)] = group
            groups = {}
        elif isinstance(node.item, Extern) and _element(node.item, buffers) is not None:
            view: View = node.item.args[0]
            assert isinstance(view.offset, int)
            groups.setdefault(view.buffer, {})[k] = view.offset
    return found


def _element(step: Extern, buffers: Mapping[str, Buffer]) -> View | None:
    """The element of a tensor that a step reads; None where its place is not known before the call."""
    view = step.args[0]
    if str(step.op) != READ_NUMBER or not isinstance(view, View) or view.shape or buffers[view.buffer].opaque:
        return None
    return view if isinstance(view.offset, int) else None


def _group(buffer: str, offsets: Mapping[int, int], buffers: Mapping[str, Buffer]) -> ReadTogether | None:
    """The group of nodes that read these elements of a buffer, if there are several and they are equally far from each other."""
    sought = sorted(set(offsets.values()))
    if len(sought) < 2:
        return None
    first, step = sought[0], sought[1] - sought[0]
    if sought != list(range(first, sought[-1] + 1, step)):
        return None
    view = View(buffer, (len(sought),), (step,), first)
    return ReadTogether(view, {k: (offset - first) // step for k, offset in offsets.items()})


__all__ = ["ReadTogether", "reads_together"]
