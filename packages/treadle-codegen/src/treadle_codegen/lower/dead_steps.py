"""Remove steps whose results nobody reads, and buffers that nothing mentions any more.

    before   loop a -> x;  loop b -> y;  return x
    after    loop a -> x;  return x

Results that an operator need not compute are no longer asked for: eigenvectors, where only the eigenvalues are read.

Random operators are kept: leaving one out would change what the following ones draw. So are checks, what may raise (reads
at positions that are data, and operators named so), and operators that define a symbol which something kept mentions.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from treadle_codegen.ir.loops import (
    BufferKind,
    Check,
    Define,
    Extern,
    Loop,
    Program,
    Step,
    View,
    bound_symbols,
    load_of,
    step_symbols,
    symbols_of,
)
from treadle_shapes.torch import operator as operator_record


def step_reads(step: Step) -> set[str]:
    """Names of the buffers a step reads."""
    if isinstance(step, (Check, Define)):
        return set()
    if isinstance(step, Extern):
        found: set[str] = set()
        _collect((step.args, tuple(step.kwargs.values())), found)
        return found
    return {load[0] for load in map(load_of, step.body) if load is not None}


def step_writes(step: Step) -> set[str]:
    """Names of the buffers a step writes."""
    if isinstance(step, (Check, Define)):
        return set()
    if isinstance(step, Extern):
        return {name for name in step.outputs if name}
    return {i.attr.buffer if i.op == "store" else i.attr[0] for i in step.body if i.op in ("store", "indirect_store")}


def _collect(value: Any, found: set[str]) -> None:
    if isinstance(value, View):
        found.add(value.buffer)
    elif isinstance(value, (tuple, list)):
        for v in value:
            _collect(v, found)


def has_effect(step: Step) -> bool:
    """Whether a step matters beyond its results: a check, an operator without results (`_assert_async`), a loop that checks
    the positions it reads or writes."""
    if isinstance(step, Loop):
        return any(i.op in ("indirect_load", "indirect_store", "check_position") for i in step.body)
    return isinstance(step, Check) or (isinstance(step, Extern) and not step.op._schema.returns)


def changes_nothing(step: Step) -> bool:
    """Whether a step is a loop that stores what stands there already: `y[i] = y[i]`, with which Python ends `y[i] += x`."""
    if not isinstance(step, Loop):
        return False
    loads = [load_of(instr) if instr.op == "load" else None for instr in step.body]
    for instr in step.body:
        if instr.op == "store":
            target = instr.attr
            if target.mode != "overwrite" or loads[instr.args[0]] != (target.buffer, target.index):
                return False
        elif instr.op in ("indirect_store", "indirect_load", "reduce", "scan"):
            return False
    return True


def is_random(step: Step) -> bool:
    """Whether the step draws from a random generator."""
    if not isinstance(step, Extern):
        return False
    record = operator_record(step.op)
    return record is not None and record.is_random


def _without_optional_results(step: Extern) -> Extern:
    """The call without results that it need not compute and that nobody reads."""
    record = operator_record(step.op)
    if record is None or record.optional_results is None or step.out_variant:
        return step
    argument, results = record.optional_results
    if any(step.outputs[k] for k in results):
        return step
    position = [a.name for a in step.op._schema.arguments].index(argument)
    args = tuple([False if k == position else value for k, value in enumerate(step.args)])
    kwargs = step.kwargs if position < len(args) else {**step.kwargs, argument: False}
    return replace(step, args=args, kwargs=kwargs)


def remove_dead_steps(program: Program, kept_names: Collection[str] = ()) -> Program:
    """The program without dead steps and unused buffers; dead results of live externs become "".

    kept_names: steps that stay in any case.
    """
    needed = {out.buffer for out in program.outputs if isinstance(out, View)}
    any_symbols = any(bound_symbols(step) for step in program.steps)  # what inputs bring is always there
    symbols = symbols_of(program.outputs) if any_symbols else frozenset()
    kept: list[Step] = []
    for step in reversed(program.steps):
        if changes_nothing(step) and step.name not in kept_names:
            continue
        written = step_writes(step)
        binds = any(symbol in symbols for symbol in bound_symbols(step))
        if written & needed or binds or is_random(step) or has_effect(step) or step.name in kept_names:
            needed |= step_reads(step)
            if any_symbols:
                buffers = [program.buffers[name] for name in written]
                symbols |= step_symbols(step).union(*[symbols_of((b.shape, b.strides)) for b in buffers])
            kept.append(step)
    kept.reverse()
    live = needed.union(program.inputs, *[step_writes(step) for step in kept if isinstance(step, Loop)])
    steps: list[Step] = []
    for step in kept:
        if isinstance(step, Extern) and any(name and name not in needed for name in step.outputs):
            step = replace(step, outputs=tuple(name if name in needed else "" for name in step.outputs))
            step = _without_optional_results(step)
        steps.append(step)
    buffers = {name: b for name, b in program.buffers.items() if name in live or b.kind is BufferKind.OUTPUT}
    constants = {name: t for name, t in program.constants.items() if name in buffers}
    return replace(program, buffers=buffers, steps=steps, constants=constants)
