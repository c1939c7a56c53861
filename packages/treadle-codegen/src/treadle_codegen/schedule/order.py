"""Dependencies through numbers: a step runs after the definitions of the numbers it uses and after the checks on them.

Each symbol that a step defines or checks counts as something that step writes and that every later step which mentions it
reads. Kernels that mention none of a check's symbols may pass it either way: a call that raises returns nothing.
"""

from __future__ import annotations

from treadle_codegen.ir.loops import Check, Program, bound_symbols, step_symbols, symbols_of
from treadle_codegen.schedule.access import step_writes

NOTHING: frozenset[str] = frozenset()


def run_time_order(program: Program) -> dict[str, tuple[frozenset[str], frozenset[str]]]:
    """Step name -> (numbers that it reads, numbers that it defines or checks), for steps that have any; "$u0" for a symbol u0.

    A step also reads the symbols in the shapes of the buffers it writes, because it may be the first to need their memory.
    """
    tracked = frozenset(program.bound_symbols)
    for step in program.steps:
        if isinstance(step, Check):
            tracked |= symbols_of(step.condition)
    if not tracked:
        return {}
    order = {}
    for step in program.steps:
        written = [program.buffers[name] for name in step_writes(step) if name]
        mentioned = step_symbols(step) | symbols_of([(buffer.shape, buffer.strides) for buffer in written])
        settled = mentioned if isinstance(step, Check) else frozenset(bound_symbols(step))
        mentioned -= frozenset(bound_symbols(step))
        reads, writes = mentioned & tracked, settled & tracked
        if reads or writes:
            order[step.name] = (frozenset(f"${s.name}" for s in reads), frozenset(f"${s.name}" for s in writes))
    return order
