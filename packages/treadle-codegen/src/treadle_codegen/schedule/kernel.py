"""Kernels: loops that share an outer loop nest, arranged in sections that run one after the other inside it.

A layer norm over the last dimension is one kernel: outer axes over the rows and three sections (sum, sum of squared
differences, normalise) over the columns. Loops with equal section axes share one section, hence one inner loop::

    for o0 in rows:
        for j0 in columns: acc += x[o0, j0]          # section 0
        for j0 in columns: y[o0, j0] = x - acc / n   # section 1
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from treadle_codegen.ir.loops import Axis, IntLike, Loop, scans
from treadle_codegen.lower.indexing import linear
from treadle_codegen.schedule.access import (
    Access,
    dense_extent,
    interval,
    loop_reads,
    loop_writes,
    rename_loop,
    split_index,
)
from treadle_shapes.expr import Expr, Symbol, substitute, symbol

_MAX_AXES = 24
OUTER_SYMBOLS: tuple[Symbol, ...] = tuple(symbol(f"o{k}") for k in range(_MAX_AXES))
INNER_SYMBOLS: tuple[Symbol, ...] = tuple(symbol(f"j{k}") for k in range(_MAX_AXES))


@dataclass(slots=True)
class Section:
    """One inner loop nest (none when `axes` is empty) with the loops whose bodies stand in it.

    Members that reduce run up to their last `reduce` inside the nest and the rest after it, once per outer point.
    """

    axes: tuple[Axis, ...]
    members: list[Loop] = field(default_factory=list)


@dataclass(slots=True)
class Kernel:
    """A set of loops over shared outer axes. `loops` are in program order, over `OUTER_SYMBOLS` then `INNER_SYMBOLS`.

    literals: the numbers that its `ConstantArgument`s stand for, with their dtypes (`targets.constants`).
    """

    outer: tuple[Axis, ...]
    sections: list[Section]
    loops: list[Loop]
    locals: dict[str, LocalBuffer] = field(default_factory=dict)
    is_backward: bool = (
        False  # whether its outer points, which come in any order, should come from the last to the first
    )
    literals: tuple[tuple[Any, torch.dtype], ...] = ()

    @property
    def name(self) -> str:
        """A name made of the fused loops' names, for logs and comments."""
        return "_".join(dict.fromkeys(loop.name.rsplit("_", 1)[0] for loop in self.loops[:6]))


@dataclass(frozen=True, slots=True)
class LocalBuffer:
    """A temporary that never leaves the kernel: `length` elements, indexed by its index with the outer part and `start` taken off.

    With a symbolic length it has `most` elements, and where the row is longer it is a row of the buffer in memory after
    all, which begins at the element `row` there.
    """

    length: IntLike
    start: IntLike
    most: int | None = None
    row: IntLike = 0

    @property
    def is_row(self) -> bool:
        """Whether it may have more than one element."""
        return self.length != 1


def section_axes(loop: Loop, prefix: int) -> tuple[Axis, ...]:
    """The axes of a loop below the shared outer prefix, reduction axes last."""
    return (*loop.axes[prefix:], *loop.reduce_axes)


def refine(a: tuple[IntLike, ...], b: tuple[IntLike, ...]) -> tuple[list[list[IntLike]], list[list[IntLike]], int]:
    """Split two extent lists so that they share the longest possible prefix: (parts of each a, parts of each b, its length).

    >>> refine((256, 64), (2, 128))
    ([[2, 128], [64]], [[2], [128]], 2)
    """
    parts_a: list[list[IntLike]] = [[] for _ in a]
    parts_b: list[list[IntLike]] = [[] for _ in b]
    i = j = shared = 0
    rest_a, rest_b = (a[0] if a else 1), (b[0] if b else 1)
    while i < len(a) and j < len(b):
        if rest_a == rest_b:
            common = rest_a
        elif isinstance(rest_a, int) and isinstance(rest_b, int) and rest_a > 0 and rest_b > 0:
            common = rest_b if rest_a % rest_b == 0 else rest_a if rest_b % rest_a == 0 else None
        else:
            common = None
        if common is None or (common == 1 and rest_a != rest_b):
            break
        parts_a[i].append(common)
        parts_b[j].append(common)
        shared += 1
        rest_a = 1 if rest_a == common else rest_a // common
        rest_b = 1 if rest_b == common else rest_b // common
        if rest_a == 1:
            i += 1
            rest_a = a[i] if i < len(a) else 1
        if rest_b == 1:
            j += 1
            rest_b = b[j] if j < len(b) else 1
    _close(parts_a, a, i, rest_a)
    _close(parts_b, b, j, rest_b)
    return parts_a, parts_b, shared


def _close(parts: list[list[IntLike]], extents: tuple[IntLike, ...], at: int, rest: IntLike) -> None:
    """Put what the shared prefix did not use up into the parts."""
    for k in range(at, len(extents)):
        parts[k].append(rest if k == at else extents[k])


def canonical(loop: Loop, parts: list[list[IntLike]], prefix: int) -> Loop:
    """The loop with its axes split into `parts` and renamed to the kernel's symbols, the first `prefix` of them outer."""
    mapping: dict[Symbol, IntLike] = {}
    axes: list[Axis] = []

    def new_axis(extent: IntLike) -> Axis:
        k = len(axes)
        axis = Axis(OUTER_SYMBOLS[k] if k < prefix else INNER_SYMBOLS[k - prefix], extent)
        axes.append(axis)
        return axis

    for axis, extents in zip(loop.axes, parts, strict=True):
        index: IntLike = 0
        for extent in extents:
            index = index * extent + new_axis(extent).symbol
        mapping[axis.symbol] = index
    kept = len(axes)
    for axis in loop.reduce_axes:
        mapping[axis.symbol] = new_axis(axis.extent).symbol
    return rename_loop(loop, mapping, tuple(axes[:kept]), tuple(axes[kept:]))


def single(loop: Loop) -> Kernel:
    """A kernel of one loop: all its axes are outer, its reduction axes, or the axis of its running totals, the section's."""
    prefix = len(loop.axes) - scans(loop)
    only = canonical(loop, [[a.extent] for a in loop.axes], prefix)
    return Kernel(only.axes[:prefix], [Section(section_axes(only, prefix), [only])], [only])


def join(kernel: Kernel, loop: Loop, *, shared_only: bool, max_row: int) -> Kernel | str:
    """The kernel with `loop` added at its end, or the reason why that is not possible.

    shared_only: the loop reads nothing that the kernel writes (horizontal fusion), so the whole outer space must agree.
    max_row: the longest row that a section passes to a later one.
    """
    outer = tuple(a.extent for a in kernel.outer)
    parts_k, parts_l, prefix = refine(outer, tuple(a.extent for a in loop.axes))
    refined_k = sum(map(len, parts_k))
    refined_l = sum(map(len, parts_l))
    if loop.reduce_axes and prefix != refined_l:
        return "the reduction's own axes are deeper than the shared outer axes"
    if prefix != refined_k and any(member.reduce_axes or scans(member) for member in kernel.loops):
        return "a reduction or scan of the kernel is deeper than the shared outer axes"
    if shared_only and not (prefix == refined_k == refined_l):
        return "independent loops over different spaces"
    if prefix + _inner_depth(kernel, parts_k, prefix) > _MAX_AXES:
        return "too many axes"
    if prefix == refined_k == len(outer):
        loops = kernel.loops
    else:
        rest = [[[a.extent] for a in member.axes[len(outer) :]] for member in kernel.loops]
        loops = [canonical(m, [*parts_k, *r], prefix) for m, r in zip(kernel.loops, rest, strict=True)]
    return arrange([*loops, canonical(loop, parts_l, prefix)], prefix, max_row)


def _inner_depth(kernel: Kernel, parts: list[list[IntLike]], prefix: int) -> int:
    deepest = max((len(section.axes) for section in kernel.sections), default=0)
    return sum(map(len, parts)) - prefix + deepest + 2


@dataclass(slots=True)
class _Writer:
    section: int
    loop: Loop
    access: Access


def arrange(loops: list[Loop], prefix: int, max_row: int) -> Kernel | str:
    """Distribute loops, in order, over sections, or the reason why no order of sections gives a loop what it reads."""
    sections: list[Section] = []
    writers: dict[str, list[_Writer]] = {}
    outer = loops[0].axes[:prefix]
    for loop in loops:
        axes = section_axes(loop, prefix)
        least = 0
        for read in loop_reads(loop):
            for writer in writers.get(read.buffer, ()):
                if len(writers[read.buffer]) > 1:
                    return f"{read.buffer} is written by several loops"
                section = _earliest_section(read, axes, writer, outer, sections, max_row)
                if isinstance(section, str):
                    return section
                least = max(least, section)
        at = _place(sections, axes, least)
        sections[at].members.append(loop)
        for write in loop_writes(loop):
            writers.setdefault(write.buffer, []).append(_Writer(at, loop, write))
    return Kernel(outer, sections, loops)


def _place(sections: list[Section], axes: tuple[Axis, ...], least: int) -> int:
    for k in range(least, len(sections)):
        if sections[k].axes == axes:
            return k
    sections.append(Section(axes))
    return len(sections) - 1


def _earliest_section(
    read: Access,
    axes: tuple[Axis, ...],
    writer: _Writer,
    outer: tuple[Axis, ...],
    sections: list[Section],
    max_row: int,
) -> int | str:
    """The first section in which `read` sees what `writer` wrote at the same outer point, or why there is none."""
    if read.index is None or writer.access.index is None:
        return f"{read.buffer} is accessed through data"
    reduces = bool(writer.loop.reduce_axes)
    writer_axes = sections[writer.section].axes
    if read.index == writer.access.index and (reduces or writer_axes == axes):
        return writer.section + (1 if reduces else 0)
    symbols = [a.symbol for a in outer]
    written, wanted = split_index(writer.access.index, symbols), split_index(read.index, symbols)
    if written is None or wanted is None or written[0] != wanted[0]:
        return f"{read.buffer} is read at other outer points than it is written"
    row = dense_extent(written[1], () if reduces else writer_axes)
    span = interval(wanted[1], axes)
    if row is None or not (dense_extent(wanted[1], axes) == row or _inside(span, row)):
        return f"{read.buffer} is read outside the row written at the same outer point"
    if isinstance(row[1], int) and row[1] > max_row:
        return f"the row of {read.buffer} does not fit a cache"
    return writer.section + 1


def _inside(span: tuple[int, int] | None, row: tuple[IntLike, IntLike]) -> bool:
    """Whether what is read lies in the row (start, length)."""
    start, length = row
    if span is None or not isinstance(start, int) or not isinstance(length, int):
        return False
    return start <= span[0] and span[1] < start + length


def local_buffer(kernel: Kernel, buffer: str, most: int) -> LocalBuffer | None:
    """How the kernel can keep a temporary that only it reads, per outer point; None if the temporary must stay in memory.

    A row of more than `most` elements must stay in memory; a row of unknown length does if it turns out longer.
    """
    symbols = [a.symbol for a in kernel.outer]
    for section in kernel.sections:
        for loop in section.members:
            for write in loop_writes(loop):
                if write.buffer != buffer:
                    continue
                split = None if write.index is None else split_index(write.index, symbols)
                row = None if split is None else dense_extent(split[1], () if loop.reduce_axes else section.axes)
                if split is None or row is None or (isinstance(row[1], int) and row[1] > most):
                    return None
                if isinstance(row[1], int) and isinstance(row[0], int):
                    return LocalBuffer(row[1], row[0])
                return LocalBuffer(row[1], row[0], most, linear([a.symbol for a in kernel.outer], split[0], row[0]))
    return None


def merge_axes(kernel: Kernel) -> Kernel:
    """Join adjacent axes that every index walks as one, e.g. rows × columns of a contiguous tensor, and drop extent 1."""
    kernel = _flatten_pointwise(kernel)
    for k in range(len(kernel.outer) - 1, 0, -1):
        kernel = _join_outer(kernel, k)
    for section in kernel.sections:
        for k in range(len(section.axes) - 1, 0, -1):
            if k < len(section.axes):
                _join_inner(section, k)
    members = {loop.name: loop for section in kernel.sections for loop in section.members}
    kernel.loops = [members[loop.name] for loop in kernel.loops]
    return kernel


def _flatten_pointwise(kernel: Kernel) -> Kernel:
    """A kernel without reductions and with one section is a single nest: make all its axes the section's."""
    if len(kernel.sections) != 1 or not kernel.outer or any(loop.reduce_axes or scans(loop) for loop in kernel.loops):
        return kernel
    loops = []
    n_outer = len(kernel.outer)
    for loop in kernel.loops:
        extents = [[a.extent] for a in loop.axes]
        loops.append(canonical(loop, extents, 0))
    assert all(len(loop.axes) >= n_outer for loop in loops)
    return Kernel((), [Section(loops[0].axes, loops)], loops, kernel.locals)


def _indices(loop: Loop) -> list[IntLike | None]:
    found: list[IntLike | None] = [a.index for a in (*loop_reads(loop), *loop_writes(loop)) if a.index is not None]
    found += [instr.attr for instr in loop.body if instr.op == "index"]
    # a mask's condition is not an index that can be walked: it blocks merging of the axes it mentions
    return found


def _masks(loop: Loop) -> list[Expr]:
    return [i.attr[1] for i in loop.body if i.op == "masked_load" and not isinstance(i.attr[1], bool)]


def _walks_as_one(loop: Loop, high: Axis, low: Axis) -> bool:
    from_masks = {s for mask in _masks(loop) for s in mask.free_symbols}
    if high.symbol in from_masks or low.symbol in from_masks:
        return False
    for index in _indices(loop):
        if index is None or isinstance(index, int):
            continue
        symbols = index.free_symbols
        if high.symbol not in symbols and low.symbol not in symbols:
            continue
        linear = linear_coefficients_of(index, high.symbol, low.symbol)
        if linear is None or linear[0] != linear[1] * low.extent:
            return False
    return True


def linear_coefficients_of(index: Expr, high: Symbol, low: Symbol) -> tuple[IntLike, IntLike] | None:
    """Coefficients of two symbols in an index that is linear in both, else None."""
    split = split_index(index, [high, low])
    return None if split is None else (split[0][0], split[0][1])


def _join_outer(kernel: Kernel, k: int) -> Kernel:
    high, low = kernel.outer[k - 1], kernel.outer[k]
    if not all(_walks_as_one(loop, high, low) for loop in kernel.loops):
        return kernel
    joined = (*kernel.outer[: k - 1], Axis(low.symbol, high.extent * low.extent), *kernel.outer[k + 1 :])
    mapping: dict[Symbol, IntLike] = {high.symbol: 0}
    new = {
        id(old): rename_loop(old, mapping, (*joined, *old.axes[len(kernel.outer) :]), old.reduce_axes)
        for old in kernel.loops
    }
    sections = [Section(s.axes, [new[id(m)] for m in s.members]) for s in kernel.sections]
    rows = {name: replace(local, row=substitute(local.row, mapping)) for name, local in kernel.locals.items()}
    return Kernel(joined, sections, [new[id(loop)] for loop in kernel.loops], rows)


def _join_inner(section: Section, k: int) -> None:
    high, low = section.axes[k - 1], section.axes[k]
    if not all(_walks_as_one(loop, high, low) for loop in section.members):
        return
    joined = (*section.axes[: k - 1], Axis(low.symbol, high.extent * low.extent), *section.axes[k + 1 :])
    section.axes = joined
    section.members = [rename_loop_axes(m, {high.symbol: 0}, joined) for m in section.members]


def rename_loop_axes(loop: Loop, mapping: dict[Symbol, IntLike], inner: tuple[Axis, ...]) -> Loop:
    """`rename_loop` for a member whose section axes became `inner`."""
    outer = tuple(a for a in loop.axes if a.symbol in OUTER_SYMBOLS)
    if loop.reduce_axes:
        return rename_loop(loop, mapping, outer, inner)
    return rename_loop(loop, mapping, (*outer, *inner), ())
