"""Values computed from the results of rows, and reduced over all rows, are stored where the rows are at hand.

before   loop [i0:16384] reduce [r0:1024]               max of each row, then the sum of exponentials, ...
         loop [] reduce [r0:16384]                      the mean of a loss: few workers read a scattered element of each row
           %0 = load target[r0];  %1 = indirect_load x[r0, %0];  %2 = load max[r0];  %3 = sub %1 %2;  %4 = reduce sum %3
after    loop [i0:16384] reduce [r0:1024]               as before
         loop [i0:16384]                                joins the kernel of the rows
           %0 = load target[i0];  %1 = indirect_load x[i0, %0];  %2 = load max[i0];  %3 = sub %1 %2;  store rows[i0] %3
         loop [] reduce [r0:16384]
           %0 = load rows[r0];  %1 = reduce sum %0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from treadle_codegen.costs import Costs
from treadle_codegen.ir.loops import Axis, Buffer, BufferKind, Instr, IntLike, Load, Loop, Program, Store
from treadle_codegen.lower.indexing import axis_symbol, contiguous, product
from treadle_codegen.schedule.access import loop_reads, rename_loop


def store_row_results(program: Program, costs: Costs) -> None:
    """Cut the program's reductions over results of rows in two where several workers share the rows."""
    if not costs.split_work:
        return
    rows: dict[str, IntLike] = {}  # buffers of results of rows, and how many there are
    steps = []
    for step in program.steps:
        if not isinstance(step, Loop):
            steps.append(step)
            continue
        steps += _cut(program, step) if why_not_cut(step, rows) is None else [step]
        if step.reduce_axes:
            stored = [i.attr.buffer for i in step.body if i.op == "store" and isinstance(i.attr, Store)]
            rows |= dict.fromkeys(stored, product([a.extent for a in step.axes]))
    program.steps = steps


def why_not_cut(loop: Loop, rows: dict[str, IntLike]) -> str | None:
    """Why a loop should compute what it reduces by itself; `rows`: how many results of rows are in which buffer."""
    kinds = [instr.attr for instr in loop.body if instr.op == "reduce"]
    if len(kinds) != 1 or len(loop.body[_reduction(loop)].args) != 1:
        return "there is no reduction of one value"
    points = product([a.extent for a in (*loop.axes, *loop.reduce_axes)])
    if points not in {rows.get(access.buffer) for access in loop_reads(loop)}:
        return "it needs no results of rows, or not each once"
    if all(instr.op in ("load", "cast") for instr in loop.body[: _reduction(loop)]):
        return "there is nothing to compute"
    return None


def _reduction(loop: Loop) -> int:
    return next(k for k, instr in enumerate(loop.body) if instr.op == "reduce")


def _cut(program: Program, loop: Loop) -> list[Loop]:
    at = _reduction(loop)
    operand = loop.body[at].args[0]
    dtype = loop.body[operand].dtype
    shape = tuple([a.extent for a in (*loop.axes, *loop.reduce_axes)])
    name = f"{loop.name}_rows"
    while name in program.buffers:
        name += "_"
    program.buffers[name] = Buffer(name, dtype, shape, contiguous(shape), BufferKind.TEMP)
    axes = tuple([Axis(axis_symbol(f"i{k}", extent), extent) for k, extent in enumerate(shape)])
    old = (*loop.axes, *loop.reduce_axes)
    body = (*loop.body[:at], Instr("store", (operand,), dtype, Store(name, _flat(old))))
    mapping = {a.symbol: b.symbol for a, b in zip(old, axes, strict=True)}
    computed = rename_loop(replace(loop, name=name, body=body, reduce_axes=()), mapping, axes, ())
    return [computed, reducing(loop, at, Load(name, _flat(old)), loop.reduce_axes)]


def _flat(axes: tuple[Axis, ...]) -> IntLike:
    position: IntLike = 0
    for axis in axes:
        position = position * axis.extent + axis.symbol
    return position


def reducing(loop: Loop, at: int, stored: Load, reduce_axes: tuple[Axis, ...]) -> Loop:
    """The loop with the reduction at `at` over values that are stored."""
    reduction = loop.body[at]
    load = Instr("load", (), loop.body[reduction.args[0]].dtype, stored)
    return beginning_with(loop, at, [load, replace(reduction, args=(0,))], reduce_axes)


def beginning_with(loop: Loop, at: int, start: Sequence[Instr], reduce_axes: tuple[Axis, ...]) -> Loop:
    """The loop with the instructions `start`, which end with a reduction, in the place of the reduction at `at` and of what that needs.

    What the loop's end needs of its beginning does not depend on the reduction, and may stand behind it.
    """
    body = list(start)
    moved: dict[int, int] = {}

    def copy(k: int) -> int:
        if k not in moved:
            instr = loop.body[k]
            args = tuple([copy(a) for a in instr.args])
            body.append(replace(instr, args=args))
            moved[k] = len(body) - 1
        return moved[k]

    moved[at] = len(body) - 1
    for k in range(at + 1, len(loop.body)):
        copy(k)
    return replace(loop, reduce_axes=reduce_axes, body=tuple(body))
