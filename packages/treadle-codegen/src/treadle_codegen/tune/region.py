"""A part of a program as a program of its own, to be measured alone.

Names are numbered in the order of their first use, so that equal parts of programs (the layers of a model) have equal text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from treadle_codegen.ir.loops import (
    BufferKind,
    Extern,
    Instr,
    Load,
    Loop,
    Program,
    Step,
    Store,
    View,
    step_symbols,
    symbols_of,
)
from treadle_codegen.lower.context import view_of
from treadle_codegen.schedule.access import accumulates, step_reads, step_writes


def why_not_region(steps: Sequence[Step], program: Program) -> str | None:
    """Why these steps cannot be measured by themselves."""
    for step in steps:
        if not isinstance(step, (Loop, Extern)) or (isinstance(step, Extern) and step.binds):
            return "it is more than computing"
        if step_symbols(step):
            return "its sizes are not known yet"
        names = step_reads(step) | step_writes(step)
        if any(symbols_of((program.buffers[n].shape, program.buffers[n].strides)) for n in names if n):
            return "its sizes are not known yet"
        if any(n in program.foreign or program.buffers[n].opaque for n in names if n):
            return "memory that loops do not reach"
        if isinstance(step, Loop) and accumulates(step):
            return "it changes what others wrote"
        if isinstance(step, Loop) and any(instr.op.startswith("indirect") for instr in step.body):
            return "it reads or writes at places that are data"
    return None


def region(program: Program, steps: Sequence[Step]) -> Program:
    """The steps as a program: what they read of others is its inputs, what others may need its outputs."""
    names: dict[str, str] = {}
    inputs: list[str] = []
    for step in steps:
        reads = step_reads(step)
        for name in _names(step):
            if name not in names:
                names[name] = f"b{len(names)}"
                inputs += [name] if name in reads else []
    inside = {step.name for step in steps}
    returned = {out.buffer for out in program.outputs if isinstance(out, View)}
    returned |= {n for s in program.steps if s.name not in inside for n in step_reads(s) | step_writes(s)}
    buffers = {}
    for name, new in names.items():
        kind = BufferKind.INPUT if name in inputs else BufferKind.OUTPUT if name in returned else BufferKind.TEMP
        buffers[new] = replace(program.buffers[name], name=new, kind=kind, offset=0)
    return Program(
        buffers,
        tuple([names[name] for name in inputs]),
        tuple([view_of(b) for b in buffers.values() if b.kind is BufferKind.OUTPUT]),
        [_renamed(step, f"s{k}", names) for k, step in enumerate(steps)],
        device=program.device,
    )


def _names(step: Step) -> list[str]:
    """The buffers of a step, in an order that does not depend on their names."""
    found: dict[str, None] = {}

    def visit(value: Any) -> None:
        if isinstance(value, (View, Load, Store)):
            found[value.buffer] = None
        elif isinstance(value, (tuple, list)):
            for item in value:
                visit(item)

    if isinstance(step, Loop):
        visit([instr.attr for instr in step.body])
    elif isinstance(step, Extern):
        visit([step.args, list(step.kwargs.values())])
        found |= dict.fromkeys(step.outputs)
    return [name for name in found if name]


def _renamed(step: Step, name: str, names: dict[str, str]) -> Step:
    def of(value: Any) -> Any:
        if isinstance(value, (View, Load, Store)):
            return replace(value, buffer=names[value.buffer])
        return type(value)(map(of, value)) if isinstance(value, (tuple, list)) else value

    if isinstance(step, Loop):
        body = tuple([Instr(i.op, i.args, i.dtype, of(i.attr)) for i in step.body])
        return replace(step, name=name, body=body, origins=())
    assert isinstance(step, Extern)
    outputs = tuple([names.get(output, "") for output in step.outputs])
    return replace(step, name=name, args=of(step.args), outputs=outputs, origins=())


def random_inputs(program: Program, device: torch.device) -> list[torch.Tensor]:
    """Inputs for a region: normal random numbers, zeros for integers."""
    made = []
    source = torch.Generator(device).manual_seed(0)  # the program's own random numbers stay as they are
    for name in program.inputs:
        buffer = program.buffers[name]
        tensor = torch.empty_strided(buffer.shape, buffer.strides, dtype=buffer.dtype, device=device)  # type: ignore[arg-type]
        made.append(tensor.normal_(generator=source) if buffer.dtype.is_floating_point else tensor.zero_())
    return made
