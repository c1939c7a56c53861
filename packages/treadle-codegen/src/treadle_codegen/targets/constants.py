"""Kernels that are equal but for constants are one kernel, which takes those constants as arguments.

x1[o0] = x0[o0] * 0.99      x[o0] * c0 with c0 = 0.99
x2[o0] = x1[o0] * 0.98      the same kernel with c0 = 0.98

The steps of an unrolled loop have numbers of their own: a learning rate, a noise level, the time of an integrator. Constants that are the
same in all these kernels stay in the code, and so do those that decide how it is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from treadle_codegen.ir.loops import Instr, Loop, Program
from treadle_codegen.ir.ops import OPS, Cost
from treadle_codegen.ir.value_class import value_class
from treadle_codegen.schedule.kernel import Kernel, Section
from treadle_codegen.targets.rebase import rebased
from treadle_codegen.targets.structure import structure_of

Place = tuple[int, int]  # of an instruction: the loop's in the kernel, its own in the loop's body


@value_class
class ConstantArgument:
    """In place of a number as the `attr` of a `const`: the kernel's `literals[number]`, which every caller gives."""

    number: int


# Positions must be known to be in range; integers are divided by and shifted by numbers in other ways than by variables.
_READ_BY_COMPILERS = frozenset(
    {"indirect_load", "indirect_store", "check_position", "truncdiv", "floordiv", "remainder", "fmod", "shl", "shr"}
)


def share_constants(kernels: Sequence[tuple[Kernel, Any]], program: Program) -> list[Kernel]:
    """The kernels, of which those that differ in constants alone take them as arguments; beside each kernel stands its tiling."""
    outlines: dict[Hashable, list[tuple[int, list[Place]]]] = {}
    for n, (kernel, choice) in enumerate(kernels):
        places = [(k, position) for k, loop in enumerate(kernel.loops) for position in open_constants(loop)]
        if places:
            ops = tuple([tuple([instr.op for instr in loop.body]) for loop in kernel.loops])
            outlines.setdefault((choice, ops, tuple(places)), []).append((n, places))
    shared = [kernel for kernel, _ in kernels]
    for alike in outlines.values():
        places = alike[0][1]
        rows = {n: tuple([_constant(shared[n], place) for place in places]) for n, _ in alike}
        if len({tuple(map(_text, row)) for row in rows.values()}) > 1:
            for members in _of_one_structure(shared, list(rows), places, program):
                _share(shared, places, {n: rows[n] for n in members})
    return shared


def open_constants(loop: Loop) -> list[int]:
    """The constants that nothing in the loop is decided by.

    Compilers compute a function of a constant themselves, correctly rounded, where a library's last bit may differ; an operation that is
    rounded as IEEE 754 says is the same either way.
    """
    found: set[int] = set()
    made_of: dict[int, set[int]] = {}  # value that is computed from constants alone -> those that may be arguments
    for k, instr in enumerate(loop.body):
        if instr.op == "const":
            made_of[k] = {k} if _may_be_argument(instr) else set()
            found |= made_of[k]
            continue
        constants = [made_of[a] for a in instr.args if a in made_of]
        if not constants:
            continue
        if why_not_argument(instr, loop) is not None:
            found = found.difference(*constants)
        if len(constants) == len(instr.args):
            made_of[k] = set().union(*constants)
    return sorted(found)


def _may_be_argument(instr: Instr) -> bool:
    """Whether a constant is an ordinary number: 0, 1, infinity and NaN make operations simpler, or are no operand at all."""
    value = instr.attr
    if instr.dtype is torch.bool or type(value) not in (int, float) or not math.isfinite(value):
        return False
    return value not in (0, 1, -1)


def why_not_argument(instr: Instr, loop: Loop) -> str | None:
    """Why what is computed from constants must be known to the compiler where this instruction takes it, or None."""
    if instr.op in _READ_BY_COMPILERS:
        return "the code depends on its value"
    if OPS[instr.op].cost >= Cost.TRANSCENDENTAL:
        return "the compiler may round it in another way than a library"
    if instr.op == "cast" and not instr.dtype.is_floating_point and loop.body[instr.args[0]].dtype.is_floating_point:
        return "the compiler and the processor differ where it is out of range"
    return None


def _constant(kernel: Kernel, place: Place) -> Instr:
    return kernel.loops[place[0]].body[place[1]]


def _text(constant: Instr) -> tuple[Hashable, ...]:
    """What tells a constant: 2.0 is not 2."""
    return constant.dtype, type(constant.attr), repr(constant.attr)


def _of_one_structure(
    kernels: Sequence[Kernel], members: Sequence[int], places: Sequence[Place], program: Program
) -> list[list[int]]:
    """The members in groups of kernels that are the same but for the constants at these places."""
    numbered = {place: ConstantArgument(k) for k, place in enumerate(places)}
    groups: dict[Hashable, list[int]] = {}
    for n in members:
        kernel, _ = rebased(_with_constants(kernels[n], numbered))
        groups.setdefault(structure_of(kernel, program)[0], []).append(n)
    return list(groups.values())


def _share(kernels: list[Kernel], places: Sequence[Place], rows: Mapping[int, Sequence[Instr]]) -> None:
    """Make arguments of the constants that differ between kernels of one structure; those that are equal in each kernel are one."""
    arguments: dict[Hashable, int] = {}
    first: dict[int, int] = {}  # number of an argument -> the place it has its values from
    attributes: dict[Place, ConstantArgument] = {}
    for k, (place, column) in enumerate(zip(places, zip(*rows.values(), strict=True), strict=True)):
        texts = tuple(map(_text, column))
        if len(set(texts)) > 1:
            number = arguments.setdefault(texts, len(arguments))
            first.setdefault(number, k)
            attributes[place] = ConstantArgument(number)
    if not arguments:
        return
    for n, row in rows.items():
        literals = tuple([(row[k].attr, row[k].dtype) for k in first.values()])
        kernels[n] = _with_constants(kernels[n], attributes, literals)


def _with_constants(
    kernel: Kernel, attributes: Mapping[Place, ConstantArgument], literals: tuple[tuple[Any, torch.dtype], ...] = ()
) -> Kernel:
    """The kernel with these attributes of constants, and values for them."""
    inside: dict[int, dict[int, ConstantArgument]] = {}
    for (k, position), attribute in attributes.items():
        inside.setdefault(k, {})[position] = attribute
    moved = {id(loop): _loop_with(loop, inside[k]) if k in inside else loop for k, loop in enumerate(kernel.loops)}
    sections = [Section(section.axes, [moved[id(m)] for m in section.members]) for section in kernel.sections]
    loops = [moved[id(loop)] for loop in kernel.loops]
    return Kernel(kernel.outer, sections, loops, kernel.locals, kernel.is_backward, literals)


def _loop_with(loop: Loop, attributes: Mapping[int, ConstantArgument]) -> Loop:
    body = list(loop.body)
    for position, attribute in attributes.items():
        body[position] = Instr("const", (), body[position].dtype, attribute)
    return Loop(loop.name, loop.axes, loop.reduce_axes, tuple(body), loop.origins, loop.is_checked)


__all__ = ["ConstantArgument", "open_constants", "share_constants"]
