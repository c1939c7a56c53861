"""What a loop reads and writes, and how two index expressions relate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from treadle_codegen.ir.loops import Axis, Extern, Instr, IntLike, Load, Loop, Step, Store, View, load_of
from treadle_codegen.ir.value_class import value_class
from treadle_shapes.expr import (
    Expr,
    Node,
    Range,
    Symbol,
    bounds,
    free_symbols,
    linear_coefficients,
    simplify,
    substitute,
)
from treadle_shapes.layouts import nested_extent


@value_class
class Access:
    """One memory access of a loop: `index` is None when it depends on data (indirect)."""

    buffer: str
    index: IntLike | None
    position: int  # of the instruction in the body


_CACHE_SIZE = 1 << 13


def loop_reads(loop: Loop) -> Sequence[Access]:
    """All loads of a loop, in order."""
    return _accesses(loop)[0]


def loop_writes(loop: Loop) -> Sequence[Access]:
    """All stores of a loop, in order."""
    return _accesses(loop)[1]


def _accesses(loop: Loop) -> tuple[Sequence[Access], Sequence[Access]]:
    """(reads, writes), found once per loop: fusion asks for them again and again."""
    if loop.accesses is None:
        reads, writes = [], []
        for k, instr in enumerate(loop.body):
            if instr.op == "store":
                writes.append(Access(instr.attr.buffer, instr.attr.index, k))
            elif instr.op == "indirect_store":
                writes.append(Access(instr.attr[0], None, k))
            elif (load := load_of(instr)) is not None:
                reads.append(Access(load[0], load[1], k))
        object.__setattr__(loop, "accesses", (tuple(reads), tuple(writes)))
    return loop.accesses


def axes_of(loop: Loop, access: Access) -> tuple[Axis, ...]:
    """The loop's axes along which the access moves; all where data tell the place."""
    axes = (*loop.axes, *loop.reduce_axes)
    if access.index is None:
        return axes
    symbols = free_symbols(access.index)
    return tuple(axis for axis in axes if axis.symbol in symbols)


def accumulates(loop: Loop) -> bool:
    """Whether the loop changes memory that other steps have written: it adds, scatters or overwrites."""
    return any(
        i.op == "indirect_store" or (i.op == "store" and isinstance(i.attr, Store) and i.attr.mode is not None)
        for i in loop.body
    )


def extern_reads(step: Extern) -> set[str]:
    """Names of the buffers among an extern's arguments."""
    found: set[str] = set()

    def visit(arg: object) -> None:
        if isinstance(arg, View):
            found.add(arg.buffer)
        elif isinstance(arg, (list, tuple)):
            for item in arg:
                visit(item)

    visit(list(step.args))
    visit(list(step.kwargs.values()))
    return found


def step_reads(step: Step) -> set[str]:
    """Names of the buffers a step reads; a loop that accumulates also reads what it writes: the rest of it stays."""
    if isinstance(step, Extern):
        return extern_reads(step)
    if not isinstance(step, Loop):
        return set()
    reads = {a.buffer for a in loop_reads(step)}
    return reads | {a.buffer for a in loop_writes(step)} if accumulates(step) else reads


def step_writes(step: Step) -> set[str]:
    """Names of the buffers a step writes."""
    if isinstance(step, Loop):
        return {a.buffer for a in loop_writes(step)}
    return set(step.outputs) if isinstance(step, Extern) else set()


def rename_loop(
    loop: Loop, mapping: Mapping[Symbol, IntLike], axes: tuple[Axis, ...], reduce_axes: tuple[Axis, ...]
) -> Loop:
    """The loop over other axes: every index expression has `mapping` substituted and is simplified over the new axes."""
    renaming = _renaming(tuple(mapping.items()), (*axes, *reduce_axes))
    body = tuple([_rename_instr(instr, renaming) for instr in loop.body])
    return Loop(loop.name, axes, reduce_axes, body, loop.origins, loop.is_checked)


class _Renaming:
    """What `rename_loop` does to expressions: each is substituted and simplified once, for all loops over such axes."""

    def __init__(self, mapping: Mapping[Symbol, IntLike], axes: Sequence[Axis]) -> None:
        self._mapping, self._ranges = mapping, axis_ranges(axes)
        self._known: dict[Any, Any] = {}

    def of(self, e: Any) -> Any:
        if not isinstance(e, Node):
            return e
        found = self._known.get(e)
        if found is None:
            found = self._known[e] = simplify(substitute(e, self._mapping), self._ranges)
        return found


@lru_cache(_CACHE_SIZE >> 4)
def _renaming(mapping: tuple[tuple[Symbol, IntLike], ...], axes: tuple[Axis, ...]) -> _Renaming:
    return _Renaming(dict(mapping), axes)


def _rename_instr(instr: Instr, renaming: _Renaming) -> Instr:
    attr = instr.attr
    if isinstance(attr, Load):
        attr = Load(attr.buffer, renaming.of(attr.index))
    elif isinstance(attr, Store):
        attr = Store(attr.buffer, renaming.of(attr.index), attr.mode)
    elif instr.op == "index":
        attr = renaming.of(attr)
    elif instr.op == "masked_load":
        condition = renaming.of(attr[1])
        load = Load(attr[0].buffer, renaming.of(attr[0].index))
        if condition is True:
            return Instr("load", (), instr.dtype, load)
        attr = (load, condition, attr[2])
    else:
        return instr
    return Instr(instr.op, instr.args, instr.dtype, attr)


def axis_ranges(axes: Sequence[Axis]) -> dict[Symbol, Range]:
    """0 <= symbol < extent for every axis."""
    return {a.symbol: Range(0, a.extent - 1) for a in axes}


def split_index(index: IntLike, outer: Sequence[Symbol]) -> tuple[tuple[IntLike, ...], IntLike] | None:
    """(coefficients of the outer symbols, what is left), or None when the index is not linear in them."""
    if isinstance(index, int):
        return (0,) * len(outer), index
    return _split_index(index, tuple(outer)) if outer else ((), index)


@lru_cache(_CACHE_SIZE)
def _split_index(index: Expr, outer: tuple[Symbol, ...]) -> tuple[tuple[IntLike, ...], IntLike] | None:
    linear = linear_coefficients(index, outer)
    return None if linear is None else (tuple([linear[0].get(s, 0) for s in outer]), linear[1])


def step_along(index: IntLike | None, axis: Axis | None) -> IntLike | None:
    """How far apart two neighbours along a loop lie in memory; None where nobody can tell."""
    split = None if index is None or axis is None else split_index(index, [axis.symbol])
    return None if split is None else split[0][0]


def dense_extent(rest: IntLike, axes: Sequence[Axis]) -> tuple[IntLike, IntLike] | None:
    """(start, length) when `rest` runs over every integer of [start, start + length) exactly once over the axes, else None."""
    return _dense_extent(rest, tuple(axes))


@lru_cache(_CACHE_SIZE)
def _dense_extent(rest: IntLike, axes: tuple[Axis, ...]) -> tuple[IntLike, IntLike] | None:
    if isinstance(rest, int):
        return (rest, 1) if all(a.extent == 1 for a in axes) else None
    linear = linear_coefficients(rest, [a.symbol for a in axes])
    if linear is None:
        return None
    steps = [(linear[0].get(a.symbol, 0), a.extent) for a in axes if a.extent != 1]
    length = nested_extent(steps)
    return None if length is None else (linear[1], length)


def interval(e: IntLike, axes: Sequence[Axis]) -> tuple[int, int] | None:
    """Smallest and largest value of `e` over the axes when both are known integers."""
    if isinstance(e, int):
        return e, e
    found = bounds(e, axis_ranges(axes))
    if not isinstance(found.lower, int) or not isinstance(found.upper, int):
        return None
    return found.lower, found.upper
