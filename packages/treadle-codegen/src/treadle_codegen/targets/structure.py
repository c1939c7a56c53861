"""What two kernels have in common that are the same but for the names of their buffers, as those of a model's layers are.

y1[o0] = x1[o0] * scale      structure  [* b0 b1] -> b2, dtypes of b0, b1, b2      buffers (x1, scale, y1)
y2[o0] = y1[o0] * scale      the same                                              buffers (y1, scale, y2)
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from treadle_codegen.ir.loops import Instr, Loop, Program
from treadle_codegen.schedule.kernel import Kernel


def structure_of(kernel: Kernel, program: Program) -> tuple[Hashable, tuple[str, ...]]:
    """(structure, buffers): kernels of equal structure have the same text, with the buffers of one in the places of the other's.

    The structure holds all that a renderer may look at: axes, instructions, dtypes, which temporaries stay inside and which buffers
    are one memory. Steps' names and origins are no part of it.
    """
    numbers = _Numbers()
    places = {id(loop): k for k, loop in enumerate(kernel.loops)}
    loops = tuple([_loop(loop, numbers) for loop in kernel.loops])
    sections = tuple([(s.axes, tuple([places[id(m)] for m in s.members])) for s in kernel.sections])
    locals_ = tuple([(numbers[name], local) for name, local in kernel.locals.items()])
    buffers = tuple(numbers)
    dtypes = tuple([program.buffers[name].dtype for name in buffers])
    shared = tuple([(numbers[a], numbers[b]) for a, b in program.in_place.items() if a in numbers and b in numbers])
    return (kernel.outer, sections, loops, locals_, dtypes, frozenset(shared), kernel.is_backward), buffers


class _Numbers(dict[str, int]):
    """Buffer -> its number, in the order in which they are asked for."""

    def __missing__(self, name: str) -> int:
        self[name] = number = len(self)
        return number


def _loop(loop: Loop, numbers: _Numbers) -> Hashable:
    return (
        loop.axes,
        loop.reduce_axes,
        loop.is_checked,
        tuple([(i.op, i.args, i.dtype, _attribute(i, numbers)) for i in loop.body]),
    )


def _attribute(instr: Instr, numbers: _Numbers) -> Hashable:
    """The attribute with numbers for buffers. Python numbers count by their text: 0.0 is not -0.0, 1 is not True, nan is nan."""
    op, attr = instr.op, instr.attr
    if op == "load":
        return numbers[attr.buffer], attr.index
    if op == "store":
        return numbers[attr.buffer], attr.index, attr.mode
    if op == "const":
        return type(attr), repr(attr)
    if op == "masked_load":
        load, condition, other = attr
        return numbers[load.buffer], load.index, condition, type(other), repr(other)
    if op in ("indirect_load", "indirect_store"):
        return numbers[attr[0]], *attr[1:]
    return attr


def renamed(names: tuple[str, ...], old: tuple[str, ...], new: tuple[str, ...]) -> tuple[Any, ...]:
    """Buffers of one kernel as those of another of the same structure."""
    mapping = dict(zip(old, new, strict=True))
    return tuple([mapping[name] for name in names])


__all__ = ["renamed", "structure_of"]
