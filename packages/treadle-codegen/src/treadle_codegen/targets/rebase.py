"""Kernels that touch a buffer from some element on take a pointer to that element.

y[o0] = x[o0 + 4096] * 2      y[o0] = x[o0] * 2 with `x + 4096`
z[o0] = x[o0 + 8192] * 2      the same kernel with `x + 8192`

The steps of an unrolled loop read and write one slice of a buffer after the other, so that all of them are one kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle_codegen.ir.loops import Instr, IntLike, Load, Loop, Store
from treadle_codegen.schedule.access import interval, loop_reads, loop_writes
from treadle_codegen.schedule.kernel import Kernel, Section
from treadle_shapes.expr import as_terms


def rebased(kernel: Kernel) -> tuple[Kernel, Mapping[str, int]]:
    """(the kernel with indices that count from those elements, buffer -> its first element that the kernel touches, if not 0)."""
    bases = _bases(kernel)
    if not bases:
        return kernel, bases
    moved = {id(loop): _moved(loop, bases) for loop in kernel.loops}
    sections = [Section(section.axes, [moved[id(m)] for m in section.members]) for section in kernel.sections]
    loops = [moved[id(loop)] for loop in kernel.loops]
    return Kernel(kernel.outer, sections, loops, kernel.locals, kernel.is_backward, kernel.literals), bases


def _bases(kernel: Kernel) -> dict[str, int]:
    found: dict[str, int] = {}
    for loop in kernel.loops:
        for access in (*loop_reads(loop), *loop_writes(loop)):
            if access.buffer in kernel.locals or found.get(access.buffer) == 0:
                continue
            first = 0 if access.index is None else _first(access.index, loop)
            found[access.buffer] = max(min(first, found.get(access.buffer, first)), 0)
    return {buffer: base for buffer, base in found.items() if base}


def _first(index: IntLike, loop: Loop) -> int:
    """The least element that an index may reach; what is constant in it where that is not known."""
    constant = as_terms(index)[1]
    if constant == 0:
        return 0
    span = interval(index, (*loop.axes, *loop.reduce_axes))
    return constant if span is None else min(span[0], constant)


def _moved(loop: Loop, bases: Mapping[str, int]) -> Loop:
    body = tuple([_from_base(instr, bases) for instr in loop.body])
    return Loop(loop.name, loop.axes, loop.reduce_axes, body, loop.origins, loop.is_checked)


def _from_base(instr: Instr, bases: Mapping[str, int]) -> Instr:
    attr: Any = instr.attr
    if instr.op == "load" and attr.buffer in bases:
        attr = Load(attr.buffer, attr.index - bases[attr.buffer])
    elif instr.op == "store" and attr.buffer in bases:
        attr = Store(attr.buffer, attr.index - bases[attr.buffer], attr.mode)
    elif instr.op == "masked_load" and attr[0].buffer in bases:
        attr = (Load(attr[0].buffer, attr[0].index - bases[attr[0].buffer]), *attr[1:])
    else:
        return instr
    return Instr(instr.op, instr.args, instr.dtype, attr)


__all__ = ["rebased"]
