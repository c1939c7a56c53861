"""Remove steps whose results nobody reads, and buffers that nothing mentions any more.

    before   loop a -> x;  loop b -> y;  return x
    after    loop a -> x;  return x

Random operators are kept: leaving one out would change what the following ones draw.
"""

from __future__ import annotations

from typing import Any

import torch

from treadle_codegen.ir.loops import BufferKind, Extern, Load, Program, Step, View


def step_reads(step: Step) -> set[str]:
    """Names of the buffers a step reads."""
    if isinstance(step, Extern):
        found: set[str] = set()
        _collect((step.args, tuple(step.kwargs.values())), found)
        return found
    found = set()
    for instr in step.body:
        if instr.op == "load":
            found.add(instr.attr.buffer)
        elif instr.op in ("masked_load", "indirect_load"):
            first = instr.attr[0]
            found.add(first.buffer if isinstance(first, Load) else first)
    return found


def step_writes(step: Step) -> set[str]:
    """Names of the buffers a step writes."""
    if isinstance(step, Extern):
        return {name for name in step.outputs if name}
    return {i.attr.buffer if i.op == "store" else i.attr[0] for i in step.body if i.op in ("store", "indirect_store")}


def _collect(value: Any, found: set[str]) -> None:
    if isinstance(value, View):
        found.add(value.buffer)
    elif isinstance(value, (tuple, list)):
        for v in value:
            _collect(v, found)


def is_random(step: Step) -> bool:
    """Whether the step draws from a random generator."""
    return isinstance(step, Extern) and torch.Tag.nondeterministic_seeded in getattr(step.op, "tags", ())


def remove_dead_steps(program: Program) -> Program:
    """Also replaces dead results of live externs by "" and drops unused buffers."""
    needed = {out.buffer for out in program.outputs if isinstance(out, View)}
    kept: list[Step] = []
    for step in reversed(program.steps):
        if step_writes(step) & needed or is_random(step):
            needed |= step_reads(step)
            kept.append(step)
    kept.reverse()
    live = needed | set(program.inputs)
    steps: list[Step] = []
    for step in kept:
        if isinstance(step, Extern) and any(name and name not in needed for name in step.outputs):
            names = tuple(name if name in needed else "" for name in step.outputs)
            step = Extern(step.name, step.op, step.args, step.kwargs, names, step.out_variant, step.origins)
        steps.append(step)
    buffers = {name: b for name, b in program.buffers.items() if name in live or b.kind is BufferKind.OUTPUT}
    constants = {name: t for name, t in program.constants.items() if name in buffers}
    return Program(buffers, program.inputs, program.outputs, steps, program.size_symbols, constants)
