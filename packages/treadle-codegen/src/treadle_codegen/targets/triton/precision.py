"""Where approximations of `exp`, division and their relatives are as good as exact ones: what depends on them is rounded to 16 bits.

    y = sigmoid(x) * x                  (bfloat16 in memory, float32 in registers)
    exact           1 / (1 + exp(-x))   `exp` within 1 unit in the last place, the quotient rounded as IEEE 754 has it
    approximated                        `exp` within 2 + 1.2 |x| units, the quotient within 2: 2**-16 at worst, and 2**-19 for the arguments
                                        that float16 has exponentials of; bfloat16 keeps 2**-9, float16 2**-12

Eager rounds to 16 bits between any two operators; in a fused kernel that is left out, which changes more. What jumps (comparisons,
roundings to whole numbers, positions of maxima) and what makes large differences of small ones (`pow`, functions of large angles) must not
depend on an approximated value. Errors: CUDA C++ Programming Guide, "Intrinsic Functions" (`__expf`, `__fdividef`); PTX ISA, `div.full`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from treadle_codegen.ir.loops import BufferKind, Extern, Instr, Loop, Program, Step, load_of
from treadle_codegen.ir.ops import LOW_FLOATS, POSITIONS
from treadle_codegen.schedule.access import extern_reads
from treadle_codegen.schedule.kernel import Kernel

# Operation on float32 numbers -> its text where an approximation will do.
APPROXIMATIONS = {
    "exp": "libdevice.fast_expf({0})",
    "sigmoid": "rough_sigmoid({0})",
    "tanh": "rough_tanh({0})",
    "log1p": "rough_log1p({0})",
    "div": "rough_div({0}, {1})",
    "reciprocal": "rough_div(tl.full([1], 1.0, tl.float32), {0})",
}
# Operations whose results change as little as their arguments do.
_SMOOTH = frozenset(
    "add sub mul div neg abs maximum minimum sqrt rsqrt reciprocal cast where reduce scan store "
    "exp exp2 expm1 log log2 log10 log1p tanh sigmoid erf one_plus_erf".split()
)


def program_may_approximate(program: Program) -> bool:
    """Whether approximations change nothing in a program's results but roundings to 16 bits; numbers in between may have more."""
    return _none_shows(
        program.steps,
        program,
        lambda name: program.buffers[name].kind is BufferKind.TEMP and name not in program.foreign,
    )


def kernel_may_approximate(kernel: Kernel, program: Program) -> bool:
    """Whether approximations change nothing in what a kernel stores in memory but roundings to 16 bits."""
    return _none_shows(kernel.loops, program, kernel.locals.__contains__)


def _none_shows(steps: Iterable[Step], program: Program, may_hold: Callable[[str], bool]) -> bool:
    rough: set[str] = set()
    for step in steps:
        if isinstance(step, Loop) and why_not_rough(step, program, may_hold, rough) is not None:
            return False
        if isinstance(step, Extern) and not rough.isdisjoint(extern_reads(step)):
            return False
    return True


def why_not_rough(loop: Loop, program: Program, may_hold: Callable[[str], bool], rough: set[str]) -> str | None:
    """Why a loop needs exact functions. `rough`: the buffers that hold approximated values, to which those are added that it stores;
    `may_hold`: whether a buffer may."""
    values: list[bool] = []
    for instr in loop.body:
        depends = any(values[a] for a in instr.args)
        if depends and (instr.op not in _SMOOTH or (instr.op == "where" and values[instr.args[0]])):
            return f"{instr.op} of an approximated value"
        if depends and instr.op == "reduce" and instr.attr in POSITIONS:
            return "the position of an approximated value"
        if depends and not instr.dtype.is_floating_point:
            return f"{instr.dtype} of an approximated value"
        if depends and instr.op == "store":
            target = instr.attr.buffer
            if program.buffers[target].dtype not in LOW_FLOATS:
                if not may_hold(target):
                    return f"{program.buffers[target].dtype} in memory"
                rough.add(target)
        loaded = load_of(instr)
        values.append(depends or is_approximated(instr) or (loaded is not None and loaded[0] in rough))
    return None


def is_approximated(instr: Instr) -> bool:
    """Whether an instruction has an approximation."""
    return instr.op in APPROXIMATIONS and instr.dtype is torch.float32
