"""The first loop of a split reduction: partial results, each of a part of the slowest reduction axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from treadle_codegen.ir.loops import Axis, Buffer, BufferKind, Instr, IntLike, Loop, Program
from treadle_codegen.ir.ops import LOW_FLOATS, POSITIONS
from treadle_codegen.lower.indexing import axis_symbol, contiguous, even_parts
from treadle_codegen.schedule.access import loop_reads, rename_loop, split_index
from treadle_shapes.expr import And, BoolExpr, Lt

IDENTITY = {"sum": 0, "prod": 1, "any": False, "all": True}


def lies_across(loop: Loop) -> bool:
    """Whether neighbours in memory belong to different results."""
    if not loop.axes or not loop.reduce_axes:
        return False
    outer, inner = loop.axes[-1].symbol, loop.reduce_axes[-1].symbol
    balance = 0
    for access in loop_reads(loop):
        split = None if access.index is None else split_index(access.index, [outer, inner])
        if split is not None:
            balance += (split[0][0] == 1) - (split[0][1] == 1)
    return balance > 0


def partial_loop(loop: Loop, parts: int, *, first_axis: bool) -> Loop:
    """The loop up to its reduction, with one more axis, the first or the last: over the parts of the slowest reduction axes."""
    at = next(k for k, instr in enumerate(loop.body) if instr.op == "reduce")
    outer = [Axis(axis_symbol(f"i{k + first_axis}", a.extent), a.extent) for k, a in enumerate(loop.axes)]
    slow = loop.reduce_axes[0].extent
    rest = loop.reduce_axes[1:]
    merged = [a.extent for a in rest]
    while isinstance(slow, int) and slow < parts and merged:  # walk the slowest axes as one
        slow, merged = slow * merged[0], merged[1:]
    whole_axes = len(rest) - len(merged)
    count = even_parts(slow, min(parts, slow)) if isinstance(slow, int) else parts
    chunk = -(-slow // count)
    if isinstance(slow, int):
        count = -(-slow // chunk)
    part = Axis(axis_symbol(f"i{0 if first_axis else len(outer)}", count), count)
    inner = merged if chunk == 1 else [chunk, *merged]
    reduce_axes = [Axis(axis_symbol(f"r{k}", e), e) for k, e in enumerate(inner)]
    position: IntLike = part.symbol if chunk == 1 else part.symbol * chunk + reduce_axes[0].symbol
    mapping = {old.symbol: new.symbol for old, new in zip(loop.axes, outer, strict=True)}
    remaining = position
    for axis in reversed(rest[:whole_axes]):
        mapping[axis.symbol] = remaining % axis.extent
        remaining = remaining // axis.extent
    mapping[loop.reduce_axes[0].symbol] = remaining
    mapping |= {
        old.symbol: new.symbol
        for old, new in zip(rest[whole_axes:], reduce_axes[len(inner) - len(merged) :], strict=True)
    }
    body = replace(loop, body=loop.body[: at + 1])
    axes = (part, *outer) if first_axis else (*outer, part)
    renamed = rename_loop(body, mapping, axes, tuple(reduce_axes))
    return renamed if chunk * count == slow else _masked(renamed, position, slow)


def walk_over_parts(loop: Loop, shape: Sequence[IntLike], *, first_axis: bool) -> tuple[Axis, IntLike]:
    """A reduction axis over the parts of each result of `loop`, and where the partial results lie, which have the sizes `shape`."""
    extent = shape[0 if first_axis else -1]
    axis = Axis(axis_symbol("r0", extent), extent)
    own = [a.symbol for a in loop.axes]
    return axis, flat([axis.symbol, *own] if first_axis else [*own, axis.symbol], shape)


def _masked(loop: Loop, position: IntLike, length: IntLike) -> Loop:
    """The loop with its reads and its reduction limited to positions below `length`."""
    inside = Lt(position, length)
    *instrs, reduction = loop.body
    body = [
        Instr("index", (), torch.int64, position),
        Instr("const", (), torch.int64, length) if isinstance(length, int) else Instr("index", (), torch.int64, length),
        Instr("lt", (0, 1), torch.bool),
        Instr("const", (), torch.int64, 0),
    ]
    moved: list[int] = []
    for instr in instrs:
        args = [moved[a] for a in instr.args]
        if instr.op == "indirect_load":  # behind the end, position 0 stands for whatever was computed
            body += [Instr("where", (2, a, 3), torch.int64) for a in args]
            args = list(range(len(body) - len(args), len(body)))
        body.append(replace(_masked_read(instr, inside), args=tuple(args)))
        moved.append(len(body) - 1)
    operand = moved[reduction.args[0]]
    dtype = body[operand].dtype
    body.append(Instr("const", (), dtype, _identity(reduction.attr, dtype)))
    body.append(Instr("where", (2, operand, len(body) - 1), dtype))
    body.append(replace(reduction, args=(len(body) - 1,)))
    return replace(loop, body=tuple(body))


def _masked_read(instr: Instr, inside: BoolExpr | bool) -> Instr:
    if instr.op == "load":
        return replace(instr, op="masked_load", attr=(instr.attr, inside, 0))
    if instr.op == "masked_load":
        load, condition, other = instr.attr
        return replace(instr, attr=(load, And(condition, inside), other))
    return instr


def _identity(kind: str, dtype: torch.dtype) -> object:
    if kind in IDENTITY:
        return IDENTITY[kind]
    kind = POSITIONS.get(kind, kind)
    if dtype.is_floating_point:
        return float("-inf") if kind == "max" else float("inf")
    if dtype is torch.bool:
        return kind == "min"
    return torch.iinfo(dtype).min if kind == "max" else torch.iinfo(dtype).max


def new_buffer(
    program: Program, loop: Loop, dtype: torch.dtype, shape: tuple[IntLike, ...], what: str = "parts"
) -> Buffer:
    """A buffer for partial results."""
    assert dtype not in LOW_FLOATS, "reductions accumulate in float32"
    name = f"{loop.name}_{what}"
    while name in program.buffers:
        name += "_"
    buffer = program.buffers[name] = Buffer(name, dtype, shape, contiguous(shape), BufferKind.TEMP)
    return buffer


def flat(index: Sequence[IntLike], shape: Sequence[IntLike]) -> IntLike:
    """The place of an element in row-major memory."""
    position: IntLike = 0
    for symbol, extent in zip(index, shape, strict=True):
        position = position * extent + symbol
    return position
