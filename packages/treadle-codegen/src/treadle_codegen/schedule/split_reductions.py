"""Split reductions that would leave most workers idle: partial results first, then their reduction.

before   loop [] reduce [r0:1000000]                    one worker walks all of x
           %0 = load x[r0];  %1 = reduce sum %0;  store y[0] %1
after    loop [i0:256] reduce [r0:3907]                 256 workers, each walks a part; lanes behind the end count as 0
           %0 = masked_load x[3907*i0 + r0] if 3907*i0 + r0 < 1000000;  %1 = reduce sum %0;  store y_parts[i0] %1
         loop [] reduce [r0:256]
           %0 = load y_parts[r0];  %1 = reduce sum %0;  store y[0] %1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from treadle_codegen.costs import Costs
from treadle_codegen.ir.loops import Axis, Buffer, BufferKind, Instr, IntLike, Load, Loop, Program, Store
from treadle_codegen.ir.ops import LOW_FLOATS
from treadle_codegen.lower.indexing import axis_symbol, contiguous, even_parts, product
from treadle_codegen.schedule.access import loop_reads, rename_loop, split_index
from treadle_codegen.schedule.row_results import reducing
from treadle_shapes.expr import And, BoolExpr, Lt

_IDENTITY = {"sum": 0, "prod": 1, "any": False, "all": True}
_UNKNOWN_PARTS = 64  # of a reduction of unknown length
_FEW_PARTS = 4  # of `split_work` elements take no longer than the second kernel that they would need


def split_reductions(program: Program, costs: Costs) -> None:
    """Split the program's reductions where that lets more workers take part. Adds buffers for the partial results."""
    if not costs.split_work:
        return
    steps = []
    for step in program.steps:
        parts = parts_of(step, costs) if isinstance(step, Loop) else 1
        if isinstance(step, Loop) and parts > 1:
            steps += _split(program, step, parts)
        else:
            steps.append(step)
    program.steps = steps


def why_not_split(loop: Loop) -> str | None:
    """Why a loop's reduction cannot be made from partial results."""
    kinds = [instr.attr for instr in loop.body if instr.op == "reduce"]
    if len(kinds) != 1:
        return "there is no reduction, or more than one"
    if kinds[0] not in (*_IDENTITY, "max", "min"):
        return "parts of it cannot be put together: positions, or a matrix product"
    return None


def parts_of(loop: Loop, costs: Costs) -> int:
    """Into how many parts a loop's reduction should be split; 1: it should not be."""
    if why_not_split(loop) is not None:
        return 1
    points, length = product([a.extent for a in loop.axes]), product([a.extent for a in loop.reduce_axes])
    if not isinstance(points, int):
        return 1
    workers = max(1, points // 32) if _across(loop) else points  # neighbours share a worker
    if not isinstance(length, int):
        return _UNKNOWN_PARTS if workers * 4 <= costs.min_parallel else 1
    most = min(2 * costs.min_parallel, points * length // costs.split_work)
    if most < 2 * workers or points * length <= _FEW_PARTS * costs.split_work:
        return 1
    return min(-(-most // workers), max(1, length // 32))


def _across(loop: Loop) -> bool:
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


def _split(program: Program, loop: Loop, parts: int) -> list[Loop]:
    at = next(k for k, instr in enumerate(loop.body) if instr.op == "reduce")
    first_axis = _across(loop)  # neighbours in memory then stay neighbours among the workers
    partial = _partial_loop(loop, parts, first_axis=first_axis)
    shape = tuple([axis.extent for axis in partial.axes])
    reduction = partial.body[-1]
    buffer = _new_buffer(program, loop, reduction.dtype, shape)
    index = _flat([axis.symbol for axis in partial.axes], shape)
    stored = replace(reduction, op="store", args=(len(partial.body) - 1,), attr=Store(buffer.name, index))
    first = replace(partial, name=f"{loop.name}_parts", body=(*partial.body, stored))
    return [first, _final_loop(loop, at, buffer, shape, first_axis=first_axis)]


def _partial_loop(loop: Loop, parts: int, *, first_axis: bool) -> Loop:
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
    if kind in _IDENTITY:
        return _IDENTITY[kind]
    if dtype.is_floating_point:
        return float("-inf") if kind == "max" else float("inf")
    if dtype is torch.bool:
        return kind == "min"
    return torch.iinfo(dtype).min if kind == "max" else torch.iinfo(dtype).max


def _new_buffer(program: Program, loop: Loop, dtype: torch.dtype, shape: tuple[IntLike, ...]) -> Buffer:
    assert dtype not in LOW_FLOATS, "reductions accumulate in float32"
    name = f"{loop.name}_parts"
    while name in program.buffers:
        name += "_"
    buffer = program.buffers[name] = Buffer(name, dtype, shape, contiguous(shape), BufferKind.TEMP)
    return buffer


def _flat(index: Sequence[IntLike], shape: Sequence[IntLike]) -> IntLike:
    position: IntLike = 0
    for symbol, extent in zip(index, shape, strict=True):
        position = position * extent + symbol
    return position


def _final_loop(loop: Loop, at: int, buffer: Buffer, shape: tuple[IntLike, ...], *, first_axis: bool) -> Loop:
    """The loop with its reduction over the partial results instead."""
    extent = shape[0 if first_axis else -1]
    axis = Axis(axis_symbol("r0", extent), extent)
    own = [a.symbol for a in loop.axes]
    index = _flat([axis.symbol, *own] if first_axis else [*own, axis.symbol], shape)
    return reducing(loop, at, Load(buffer.name, index), (axis,))
